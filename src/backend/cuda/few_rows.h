// Linear for few rows, as in decoding: straight from the 4-bit weight, which is read once.
#ifndef QLORA_BACKEND_CUDA_FEW_ROWS_H_
#define QLORA_BACKEND_CUDA_FEW_ROWS_H_

#include "backend/cuda/stream.h"
#include "backend/ops.h"

namespace qlora::cuda {

inline constexpr std::int64_t kMostFewRows = 16;

// How the kernel cuts a weight into blocks of threads.
struct FewRowsCut {
  static constexpr int kBlockRows = 128;          // of the weight
  static constexpr int kStep = 256;               // columns
  static constexpr std::int64_t kLeastSteps = 2;  // of a part of the columns
  static constexpr std::int64_t kBlocks = 264;    // that keep a large GPU busy
};

// y = [y +] x W^T + bias + scale u B^T, products of x and W in bfloat16:
//   x W^T = the sum over blocks of 64 columns of scale(block) * (code . x)
// in float32, with codes rounded to bfloat16 and scales as they are.
struct FewRows {
  ConstMatrixView x;  // (N, I), N <= kMostFewRows
  QuantizedView weight;
  ConstMatrixView bias;  // (1, O) or empty
  ConstMatrixView u;     // (N, R) float32, or empty
  ConstMatrixView b;     // (O, R) float32
  float scale = 0;
  MatrixView y;  // (N, O)
  Store store = Store::kSet;
  float* partial = nullptr;  // room for FewRowsRoom(N, O, I) values
};

// Whether the kernel reads such a weight: whole blocks of 64 values within each row.
bool IsForFewRows(const WeightView& weight, std::int64_t rows);
// At least what a weight (O, I) of these features or less needs.
std::int64_t FewRowsRoom(std::int64_t rows, std::int64_t out_features, std::int64_t in_features);
void Queue(Stream stream, const FewRows& product);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_FEW_ROWS_H_
