// Which type each tensor of a quantized GGUF file gets: the mixes that llama.cpp's users know by
// their names (Q4_K_M ...). A name stands for a type that most matrices get, and for matrices that
// get more bits because errors in them cost most: the output head, attn_v, ffn_down, attn_output.
#ifndef QLORA_EXPORT_GGUF_GGUF_MIX_H_
#define QLORA_EXPORT_GGUF_GGUF_MIX_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_type.h"

namespace qlora {

// A kind of GGUF file.
struct GgufFileType {
  std::string_view name;  // llama.cpp's: "Q4_K_M"
  std::uint32_t number;   // LLAMA_FTYPE, the value of general.file_type
  TensorType base;        // of the matrices for which no rule says otherwise
  bool needs_importance;  // too few bits to be of use without an importance matrix
};

// The file types that can be written, from the most bits to the fewest.
std::span<const GgufFileType> GgufFileTypes();
// In any case of letters; nullptr when there is none.
const GgufFileType* FindGgufFileType(std::string_view name);

// Bits of a weight of the base type, with its share of the scales: 16, 8.5, 4.5 ...
double BitsOf(const GgufFileType& file);

// What the rules ask of a model.
struct GgufMixModel {
  std::string architecture;  // llama.cpp's
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // of layer 0; 0: it does not attend
  std::int64_t experts = 0;
  // The layers with attn_v or attn_qkv, whose rules count these alone; empty: all.
  std::vector<std::int64_t> value_layers = {};
  bool tied = false;            // there is no output.weight
  bool has_importance = false;  // an importance matrix is given
};

// Returns the type of a weight that is a matrix or a stack of matrices with rows of `cols` values,
// by its name in llama.cpp ("blk.3.attn_v.weight"), in a file that has all layers of the model.
// Rows that the blocks do not divide get a type of smaller blocks, or F16.
TensorType GgufTensorType(const GgufFileType& file, const GgufMixModel& model,
                          std::string_view name, std::int64_t cols);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_MIX_H_
