// The kernels: each function queues one op, or one step of an op, in a stream. Operands are in
// device memory, and have been checked (CheckOp). Where an op has no rows, nothing is queued.
#ifndef QLORA_BACKEND_CUDA_KERNELS_H_
#define QLORA_BACKEND_CUDA_KERNELS_H_

#include <cstdint>
#include <span>

#include "backend/cuda/stream.h"
#include "backend/ops.h"

namespace qlora::cuda {

// ---- Ops of one kernel.

void Queue(Stream stream, const ops::Embed& op);
void Queue(Stream stream, const ops::EmbedBackward& op);
void Queue(Stream stream, const ops::AddNoise& op);
void Queue(Stream stream, const ops::Copy& op);
void Queue(Stream stream, const ops::Zero& op);
void Queue(Stream stream, const ops::Add& op);
void Queue(Stream stream, const ops::GatherRows& op);
void Queue(Stream stream, const ops::ScatterAddRows& op);
void Queue(Stream stream, const ops::ScaleRows& op);
void Queue(Stream stream, const ops::SumRows& op);
void Queue(Stream stream, const ops::RmsNorm& op);
void Queue(Stream stream, const ops::RmsNormBackward& op);
void Queue(Stream stream, const ops::Rope& op);
void Queue(Stream stream, const ops::GatedActivation& op);
void Queue(Stream stream, const ops::GatedActivationBackward& op);
void Queue(Stream stream, const ops::CrossEntropy& op);
void Queue(Stream stream, const ops::RouteExperts& op);
void Queue(Stream stream, const ops::RouteExpertsBackward& op);
void Queue(Stream stream, const ops::RowDots& op);
void Queue(Stream stream, const ops::RowNorms& op);
void Queue(Stream stream, const ops::ScaleColumns& op);
void Queue(Stream stream, const ops::ColumnDots& op);
void Queue(Stream stream, const ops::ColumnSquares& op);

// ---- Ops that need tables or room.

// The 256 entries of each map of 8-bit moments (quant/dynamic_map.h).
struct MomentMaps {
  const float* both_signs = nullptr;  // m
  const float* positive = nullptr;    // v
};
void Queue(Stream stream, const ops::Update& op, const MomentMaps& maps);

inline constexpr std::int64_t kMostPartialSums = 256;
// partial: room for kMostPartialSums values.
void Queue(Stream stream, const ops::SumOfSquares& op, double* partial);

// ---- Steps of Linear.

// out(rows, cols; float32 or bfloat16) = a part of a frozen weight, which begins at (row, col):
// code * scale in float32 for 4-bit weights, rounded once.
struct WeightPart {
  WeightView weight;
  std::int64_t row = 0;
  std::int64_t col = 0;
  MatrixView out;
};
void DecodeWeight(Stream stream, const WeightPart& part);
// True where DecodeWeight reads and writes whole words: where every chunk of the part is a word of
// one block, and is stored as 16 bytes of bfloat16, and elements can be counted in 32 bits.
bool DecodesWords(const WeightPart& part);

// The dropout factors of an adapter's input, and a factor of all values. Row 0 of a matrix
// is row `first_row` of the input, column 0 its column `first_col`.
struct DropMask {
  float scale = 1;
  float dropout = 0;
  RandomKey key = {};
  std::int64_t in_features = 0;  // I
  std::int64_t first_row = 0;
  std::int64_t first_col = 0;
};
// y = scale * mask * x, in the type of y. Without both a conversion.
void DropRows(Stream stream, const ConstMatrixView& x, const DropMask& mask, const MatrixView& y);
// y = scale x, in the type of y; 0 where x is empty. All in one launch, in no order.
struct ScaledCopy {
  ConstMatrixView x = {};
  float scale = 1;
  MatrixView y = {};
};
void CopyAll(Stream stream, std::span<const ScaledCopy> copies);
// y_acc += mask * x.
void AddDropped(Stream stream, const ConstMatrixView& x, const DropMask& mask,
                const MatrixView& y_acc);
// The columns by which a product adds a bias (1, O; float32): y(O, 2) = its value in the type of y,
// and the remainder. Without a bias y(N, 2) = 1.
inline constexpr std::int64_t kBiasColumns = 2;
void BiasColumns(Stream stream, const ConstMatrixView& bias, const MatrixView& y);

// ---- Quantization.

// The decision table of quant/encode_table.h, by value.
struct EncodeRule {
  float thresholds[15];
  std::uint8_t codes[16];
  std::uint8_t zero_block_code;
};
// Blocks of consecutive values, block_size even; the last block may be short.
struct BlocksToEncode {
  const void* x = nullptr;  // (count) F32, BF16 or F16
  DType dtype = DType::kF32;
  std::int64_t count = 0;
  std::int64_t block_size = 0;
  EncodeRule rule;
  std::uint8_t* packed = nullptr;  // (ceil(count / 2)); an odd last nibble is left 0
  float* scales = nullptr;         // (blocks), at least infinity where a value is not finite
};
void EncodeBlocks(Stream stream, const BlocksToEncode& blocks);

// Double quantization, as DoubleQuantize of quant/double_quant.h with its mean.
struct ScalesToEncode {
  const float* scales = nullptr;  // (count)
  std::int64_t count = 0;
  std::int64_t block_size = 0;
  float mean = 0;
  const float* map = nullptr;     // (256) the dynamic map
  std::uint8_t* codes = nullptr;  // (count)
  float* absmax = nullptr;        // (blocks)
};
void EncodeScales(Stream stream, const ScalesToEncode& scales);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_KERNELS_H_
