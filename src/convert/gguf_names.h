// How llama.cpp names and orders what Hugging Face calls otherwise.
#ifndef QLORA_CONVERT_GGUF_NAMES_H_
#define QLORA_CONVERT_GGUF_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace qlora {

// The llama.cpp architecture of a model family. Errors: InvalidInput when llama.cpp has none, or
// computes it differently from Hugging Face.
std::string GgufArchitecture(const DecoderConfig& config);

// Tensor names of the linears of layer l, without ".weight".
PerLinear<std::string> GgufLinearNames(std::int64_t layer, const DecoderConfig& config);

// The source row of each output row of a q_proj or k_proj weight with `heads` heads. The llama
// graph rotates neighbouring pairs, Hugging Face rotates dims i and i + K/2; other architectures
// keep the order.
std::vector<std::int64_t> RotaryRowOrder(const DecoderConfig& config, std::int64_t heads);

// The key-value pairs that describe the decoder.
GgufMetadata GgufModelMetadata(const DecoderConfig& config, const std::string& name,
                               std::uint32_t file_type);

// The key-value pairs of the tokenizer; rows: size of the embedding, which may be padded beyond it.
// Errors: InvalidInput for a tokenizer that llama.cpp cannot be told about.
GgufMetadata GgufTokenizerMetadata(const Tokenizer& tokenizer, std::int64_t rows);

// Divisors of the rotary frequencies that are stored as tensors: {name, values (K_rot/2)}.
struct RopeFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<RopeFactors> GgufRopeFactors(const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONVERT_GGUF_NAMES_H_
