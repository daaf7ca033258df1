// What a GGUF file says of a decoder: its keys, and how its linears are written.
#ifndef QLORA_CONVERT_GGUF_METADATA_H_
#define QLORA_CONVERT_GGUF_METADATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "model/config.h"
#include "model/linear_shapes.h"

namespace qlora {

// Returns the llama.cpp architecture of a model family. Errors: InvalidInput when llama.cpp lacks
// the family, or computes it differently from Hugging Face.
std::string GgufArchitectureOf(const DecoderConfig& config);

// Returns the linears of a group (PerLinear::gate_up, down ...) that are stored in tensor number
// `place` of `places`: one, or all experts'.
template <typename Group>
auto StackOf(Group& group, std::size_t place, std::size_t places) {
  std::vector<decltype(&group[0])> stack;
  // One linear that is several tensors (GgufArchitecture::splits_gate_up) is in each of them.
  const std::size_t first = group.size() < places ? 0 : place;
  for (std::size_t i = first; i < group.size(); i += places) stack.push_back(&group[i]);
  return stack;
}

// How the rows of a linear are written.
struct LinearRows {
  std::vector<std::int64_t> order;  // GgufRowOrder: the source row of each output row
  // The factor of the rows: llama.cpp ignores query_pre_attn_scalar of Gemma 2 (GgufScoreFactor);
  // the difference goes into q_proj. In Gemma 3 it goes into the norm of the queries.
  float factor = 1;
};
PerLinear<LinearRows> GgufLinearRows(std::int64_t layer, const DecoderConfig& config);

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

#endif  // QLORA_CONVERT_GGUF_METADATA_H_
