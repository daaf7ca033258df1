// Linear for few rows, as in decoding: straight from the 4-bit weights, which are read
// once for every 32 rows.
#ifndef QLORA_BACKEND_CUDA_FEW_ROWS_H_
#define QLORA_BACKEND_CUDA_FEW_ROWS_H_

#include "backend/cuda/stream.h"
#include "backend/ops.h"

namespace qlora::cuda {

inline constexpr std::int64_t kMostFewRows = 64;

// True for a weight that the kernel reads: whole blocks of 64, 128, 256 ... values, so that 64
// values within a row have one scale, and at most 2^32 values.
bool IsForFewRows(const WeightView& weight, std::int64_t rows);

// u = x A^T of the adapters of all linears, in float32, as if none had dropout.
void QueueAdaptersDown(Stream stream, const ops::Linear& op);

// y = [y +] x W^T + bias + scale u B^T of all linears, whose u is given, with products of x and W
// in bfloat16:
//   x W^T = the sum over blocks of 64 columns of scale(block) * (code . x)
// in float32, with codes rounded to bfloat16 and scales as they are. x is bfloat16 and
// IsBlasOperand, and each weight IsForFewRows. The number of multiprocessors of the device decides
// about time alone.
void QueueFewRows(Stream stream, const ops::Linear& op, int multiprocessors);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_FEW_ROWS_H_
