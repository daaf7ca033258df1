// llama.cpp's names and orders, from Hugging Face's.
#ifndef QLORA_CONVERT_GGUF_NAMES_H_
#define QLORA_CONVERT_GGUF_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "model/config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the llama.cpp architecture of a model family. Errors: InvalidInput when llama.cpp lacks
// the family, or computes it differently from Hugging Face.
std::string GgufArchitecture(const DecoderConfig& config);

// Returns the tensor names of the linears of layer l, without ".weight". The experts of a mixture
// are stacked: gate_up then holds two names and down one, of tensors (E, O, I).
PerLinear<std::string> GgufLinearNames(std::int64_t layer, const DecoderConfig& config);

// Returns the linears of a group (PerLinear::gate_up, down ...) that are stored in tensor number
// `place` of `places`: one, or all experts'.
template <typename Group>
auto StackOf(Group& group, std::size_t place, std::size_t places) {
  std::vector<decltype(&group[0])> stack;
  for (std::size_t i = place; i < group.size(); i += places) stack.push_back(&group[i]);
  return stack;
}

// The order of a linear's rows in GGUF. The llama graph rotates neighbouring pairs, Hugging Face
// rotates dims i and i + K/2, so the rows of q_proj and k_proj change places.
struct LinearRows {
  std::vector<std::int64_t> order;  // the source row of each output row; empty: the same
  // The factor of the rows: llama.cpp ignores query_pre_attn_scalar of Gemma 2 (GgufScoreFactor);
  // the difference goes into q_proj. In Gemma 3 it goes into the norm of the queries.
  float factor = 1;
};
PerLinear<LinearRows> GgufLinearRows(const DecoderConfig& config);

// Adds the keys that describe the decoder.
void AddModelMetadata(const DecoderConfig& config, const std::string& name, std::uint32_t file_type,
                      GgufMetadata& out);

// Divisors of the rotary frequencies that are stored as tensors: {name, values (K_rot/2)}.
struct RopeFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<RopeFactors> GgufRopeFactors(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_NAMES_H_
