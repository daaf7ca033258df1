// How GGUF files hold the weights of a decoder otherwise than checkpoints; families.h has
// llama.cpp's architectures, tensor_list.h the names of tensors. What llama.cpp computes otherwise
// is in gguf_config.h, for files that are read, and export/gguf/gguf_limits.h, for files that are
// written.
#ifndef QLORA_CONFIG_GGUF_NAMES_H_
#define QLORA_CONFIG_GGUF_NAMES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/families.h"

namespace qlora {

// How the rows of a linear are written.
struct LinearRows {
  std::vector<std::int64_t> order;    // the source row of each output row, or empty
  std::vector<std::int64_t> columns;  // the source column of each output column, or empty
  // The factor of the rows: llama.cpp ignores query_pre_attn_scalar of Gemma 2 (GgufScoreFactor);
  // the difference goes into q_proj. In Gemma 3 it goes into the norm of the queries.
  float factor = 1;
};

// llama.cpp repeats key heads of the gated delta rule as a whole where Hugging Face repeats each:
// the value head of the checkpoint that is value head i of the file. Empty where none moves.
//   Hugging Face  key head g has the value heads g r ... g r + r - 1
//   llama.cpp     value head j has the key head j mod G
std::vector<std::int64_t> GgufValueHeads(const DecoderConfig& config);
// The factor between the scores that config.json asks for and those of llama.cpp, which has no key
// for their scale: 1/sqrt(head_dim), or for Gemma 2 of 46 layers and Gemma 3 of 62 (both 27B)
// 1/sqrt(hidden_size / heads), rounded down.
float GgufScoreFactor(const DecoderConfig& config);

// Tensors that rules know by their names; all others are in tensor_list.cc alone.
inline constexpr const char* kGgufEmbedding = "token_embd.weight";
inline constexpr const char* kGgufHead = "output.weight";
// Longrope has two lists of factors.
inline constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
inline constexpr const char* kGgufShortFactors = "rope_factors_short.weight";

// The number of the block in "blk.12.attn_q.weight"; -1 for other names.
std::int64_t GgufBlockOf(std::string_view tensor);
// "attn_q.weight" of it; "" of other names.
std::string_view GgufNameInBlock(std::string_view tensor);

// Whether llama.cpp loads the tensors NAME.scale and NAME.input_scale beside a weight of a block.
// weight: "blk.0.attn_q.weight".
bool HasGgufScales(std::string_view weight);
// Whether it multiplies the products with the weight by NAME.scale: it applies not all that it
// loads.
bool IsGgufScaled(const GgufFamily& family, std::string_view weight);
// Whether it does so behind the bias: in an MLP.
bool ScalesGgufBias(std::string_view weight);

// llama.cpp adds the adapter of ffn_down_exps behind the number of each expert that a Gemma 4
// multiplies its output with, so that B in an adapter GGUF has that number in it. The numbers of
// all experts, layer after layer, under a key that llama.cpp does not know, lead back.
inline constexpr const char* kGgufExpertScales = "qlora.expert_scales";

// The tensor that divides the frequencies, and what it has for a pair of dims that does not turn.
inline constexpr const char* kGgufDivisors = "rope_freqs.weight";
inline constexpr float kGgufStays = 1e30F;

}  // namespace qlora

#endif  // QLORA_CONFIG_GGUF_NAMES_H_
