// Experts in MXFP4 (OCP Microscaling, arXiv:2310.10537), as gpt-oss is published. The parameter P
// of E experts, each a matrix (out, in), is stored as
//
//   P_blocks   U8 [E, out, in / 32, 16]  byte i of a block: value 2 i in bits 3..0, 2 i + 1 in 7..4
//   P_scales   U8 [E, out, in / 32]      values of a block are multiplied by 2^(byte - 127)
//
// and the values of the codes are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and with bit 3 their negatives. ggml's
// MXFP4 (ggml/block_format.h) is the same numbers in another order of bytes.
#ifndef QLORA_IO_MXFP4_H_
#define QLORA_IO_MXFP4_H_

#include <memory>
#include <string_view>

#include "io/json_fwd.h"
#include "io/tensor_file.h"

namespace qlora {

// ggml's MXFP4.
TensorType Mxfp4Type();

// The tensors of `stored` with each such parameter as E matrices "P.0", "P.1" ... (out, in) in
// ggml's blocks, repacked as they are read. A parameter without scales, or of other shapes, is
// among the unread ones. Returns `stored` itself where there are none. Errors on reading:
// InvalidInput for a scale of 255, which is NaN.
std::unique_ptr<TensorReader> WithMxfp4Blocks(std::unique_ptr<TensorReader> stored);

// quantization_config of config.json: true for quant_method mxfp4.
bool IsMxfp4Config(const Json& json, std::string_view where);

}  // namespace qlora

#endif  // QLORA_IO_MXFP4_H_
