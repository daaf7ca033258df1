// Weights in 8-bit floating point, as DeepSeek, Qwen and Mistral publish them. The weight P.weight
// of shape [out, in] is stored as
//
//   P.weight            F8_E4M3 [out, in]
//   P.weight_scale_inv  what its values are multiplied by, whatever the name says; P.weight_scale
//                       of llm-compressor, FBGEMM and ModelOpt is the same:
//                         [] or [1]  one number for the weight
//                         [out]      one number for each row, also [out, 1]
//                         [R, C]     one number for each block of b x c values, where
//                                    R = ceil(out / b) and C = ceil(in / c); the last blocks may be
//                                    short. F32, BF16 or F16, or powers of two: F8_E8M0 or U8,
//                                    2^(byte - 127)
//   P.activation_scale, P.input_scale   of inputs, for products in 8 bits; not used
//
// The parameter of E experts (E, out, in) has its scales alike: [E], [E, out], [E, R, C].
//
// E4M3: 1 bit sign, 4 exponent (bias 7), 3 mantissa; exponent 0 is mantissa * 2^-9, no infinities,
// 0x7F and 0xFF are NaN, the largest is 448.
#ifndef QLORA_IO_FP8_H_
#define QLORA_IO_FP8_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "io/json_fwd.h"
#include "io/tensor_file.h"

namespace qlora {

// The value of one byte in F8_E4M3.
float FromE4M3(std::uint8_t byte);

// True if any tensor is in F8_E4M3.
bool HoldsFp8(const TensorReader& reader);

// The size of the blocks (b, c) as config.json states it; 0: it does not, and the numbers of scales
// tell, of which a power of two is taken where several sizes fit.
struct Fp8Blocks {
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  bool operator==(const Fp8Blocks&) const = default;
};

// The tensors of `stored` with the weights above as F32 under their names, decoded as they are
// read, and without their scales. A weight that lost its scale, or whose scale has another shape,
// is among the unread ones. Returns `stored` itself where nothing is in F8_E4M3.
std::unique_ptr<TensorReader> WithDecodedFp8(std::unique_ptr<TensorReader> stored,
                                             const Fp8Blocks& blocks = {});

// True where a reader shows a tensor that its file holds in F8_E4M3. Such a tensor is written in
// BF16, the type of these models before they were quantized.
bool IsDecodedFp8(const TensorReader& reader, const TensorInfo& tensor);

// quantization_config of config.json. Returns true for weights in 8-bit floating point:
// quant_method fp8 and fbgemm_fp8, and compressed-tensors and modelopt where they say so. Errors:
// InvalidInput for another format than e4m3.
bool IsFp8Config(const Json& json, std::string_view where);
// weight_block_size of the same, or block_structure of compressed-tensors. Errors: InvalidInput for
// what is no pair of positive numbers.
Fp8Blocks Fp8BlocksOf(const Json& json, std::string_view where);

}  // namespace qlora

#endif  // QLORA_IO_FP8_H_
