// 4-bit weights in checkpoints of bitsandbytes (github.com/bitsandbytes-foundation/bitsandbytes).
// The weight P.weight of shape [out, in] is stored as several tensors:
//
//   P.weight                   packed codes, U8 [(out * in + 1) / 2, 1], or those bytes as floats
//   P.weight.absmax            scales, F32 [blocks]; their U8 codes with double quantization
//   P.weight.quant_map         F32 [16], the value of each nibble
//   P.weight.nested_absmax     F32 [blocks of scales]; with double quantization only
//   P.weight.nested_quant_map  F32 [256], the value of each code; with double quantization only
//   P.weight.quant_state.bitsandbytes__nf4, or __fp4: U8, a JSON text with the rest
#ifndef QLORA_IO_BNB_H_
#define QLORA_IO_BNB_H_

#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "io/tensor_file.h"
#include "qlora/nf4.h"

namespace qlora {

// All that is known of a stored weight before its numbers are.
struct BnbLayout {
  QuantType type = QuantType::kNf4;
  DType dtype = DType::kBF16;       // of the weight before it was quantized: kF32, kF16 or kBF16
  std::vector<std::int64_t> shape;  // of the weight before it was quantized
  std::int64_t block_size = 64;     // 32, 64, ... 4096
  bool double_quant = true;
  std::int64_t nested_block_size = 256;
};

struct BnbMatrix {
  BnbLayout layout;
  // shape[0] rows. Points into the reader's mapping (keep the reader), except for small arrays that
  // the file does not align, which it owns.
  QuantizedMatrix matrix;
};

// True if `weight` ("P.weight") is stored in this form.
bool HasQuantState(const TensorReader& reader, std::string_view weight);

// True if any weight is. config.json may lack quantization_config: the tensors themselves tell.
bool HoldsBnb(const TensorReader& reader);

// Returns "P.weight" when `tensor` is the name of one of its other pieces; empty otherwise.
std::string_view BnbWeightOf(std::string_view tensor);

// Errors: InvalidInput that names file and tensor, for missing pieces, sizes that do not agree,
// unknown keys of the JSON text, scales that are NaN or infinite.
BnbMatrix ReadBnb(const TensorReader& reader, const std::string& weight);

// Releases a weight that will not be read again (see TensorReader::Release).
void ReleaseBnb(const TensorReader& reader, std::string_view weight);

// Returns the pieces to declare to a TensorWriter for a weight that WriteBnb will then write.
std::vector<TensorInfo> BnbTensors(const std::string& weight, const BnbLayout& layout);

// Writes all pieces in the order of BnbTensors. Errors: InvalidInput when the view is not of this
// layout.
void WriteBnb(TensorWriter& writer, const BnbLayout& layout, const QuantizedView& view);

// The quantization_config object of config.json. For reading HasQuantState decides, weight by
// weight; this object tells transformers to look for the pieces.
struct BnbConfig {
  QuantType type = QuantType::kNf4;
  bool double_quant = true;
  std::vector<std::string> skip_modules;  // linears that are not quantized
};
Json FormatBnbConfig(const BnbConfig& config);
// Errors: InvalidInput for another method than bitsandbytes in 4 bits.
void CheckBnbConfig(const Json& json, std::string_view where);

}  // namespace qlora

#endif  // QLORA_IO_BNB_H_
