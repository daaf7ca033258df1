// How linears are cut into pieces, and the scratch memory of one piece. Cuts depend on shapes
// alone, so results do not depend on the number of threads.
#ifndef QLORA_BACKEND_CPU_LINEAR_PLAN_H_
#define QLORA_BACKEND_CPU_LINEAR_PLAN_H_

#include <span>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"
#include "backend/cpu/workspace.h"
#include "base/arena.h"

namespace qlora::cpu {

// Linears of a group: q, k and v are three.
inline constexpr std::int64_t kMostLinears = 4;
// Rows of x that are packed at once: 1024 * 5632 bfloat16 inputs are 11 MiB of the third-level
// cache, and decoding a weight anew for every 1024 rows costs 1 % of their products.
inline constexpr std::int64_t kRowChunk = 1024;
// Rows of a weight per task. Their sums over a row chunk, 48 * 1024 floats, stay in the
// second-level cache; 48 is a multiple of every tile height.
inline constexpr std::int64_t kWeightRows = 48;
// Values of k between two visits of a tile of sums, forward and backward: a panel of 64 lanes of
// them is 64 (32) KiB, half of a worker's share of the second-level cache at most.
inline constexpr std::int64_t kForwardDepth = 512;
inline constexpr std::int64_t kBackwardDepth = kDecodedRows;
static_assert(2 * kDecodedRows <= kForwardDepth);  // room of LinearScratch::panel and values
static_assert(kWeightRows % kPrepackedRows == 0 && kForwardDepth % (kPrepackedGroup * kChunk) == 0);
// Up to so many rows of dy, decoding the weight costs as much as the products, and a task of the
// backward pass takes 2 * kChunk columns.
inline constexpr std::int64_t kPairedRows = 256;
// Most rows of dy per task of du = dy B. Where there are few, tasks have an eighth of them, in
// multiples of 8: of every Kernels::step, because transposed operands are padded to it.
inline constexpr std::int64_t kGradientRows = 64;
// Elements between rows of a packed operand beyond its length, against rows that meet in the same
// cache set.
inline constexpr std::int64_t kRowGap = 32;

inline std::int64_t PackedStride(const Kernels& kernels, std::int64_t k) {
  return RoundUp(k, kernels.panel) + kRowGap;
}

// Element (row, col) of a packed operand.
inline std::byte* At(const MatrixView& packed, const Kernels& kernels, std::int64_t row,
                     std::int64_t col) {
  return static_cast<std::byte*>(packed.data) +
         static_cast<std::size_t>(row * packed.stride + col) * kernels.bytes;
}

// Number of pieces.
inline std::int64_t Pieces(std::int64_t n, std::int64_t piece) { return (n + piece - 1) / piece; }

// Scratch of one worker.
struct LinearScratch {
  MatrixView tile;      // sums: (kWeightRows, lanes), (rows of a chunk, kChunk or twice that) ...
  MatrixView low_rank;  // the same, of the adapter before dropout
  MatrixView rows;      // (kWeightRows, k) rows operand
  MatrixView panel;     // (k, kChunk) panels, or two of (kBackwardDepth, kChunk)
  MatrixView scales;    // of kWeightRows rows of a weight
  MatrixView values;    // decoded weights or dropped inputs, before packing; scales of chunks

  LinearScratch(Carver& carver, const Kernels& kernels, std::int64_t rows_of_chunk,
                std::int64_t features, std::int64_t rank) {
    const std::int64_t lanes = RoundUp(std::max(rows_of_chunk, rank), kChunk);
    const std::int64_t rows_of_sums = std::max(lanes, 2 * std::min(lanes, kPairedRows));
    tile = carver.Matrix(DType::kF32, rows_of_sums, kChunk);
    low_rank = carver.Matrix(DType::kF32, rows_of_sums, kChunk);
    rows = carver.Matrix(ElementType(kernels), kWeightRows, PackedStride(kernels, kForwardDepth));
    panel = carver.Matrix(ElementType(kernels), kForwardDepth, kChunk);
    scales = carver.Matrix(DType::kF32, 1, WeightRows::ScaleCount(features, kWeightRows));
    values = carver.Matrix(DType::kF32, kForwardDepth, kChunk);
  }

  float* sums() const { return tile.Row<float>(0); }
  std::byte* packed_rows() const { return static_cast<std::byte*>(rows.data); }
  std::byte* packed_panel() const { return static_cast<std::byte*>(panel.data); }
};

// Of the adapters of a group.
std::int64_t SumOfRanks(std::span<const LinearView> linears);

// Throws when a group has more linears than the plan allows for.
void CheckGroup(std::span<const LinearView> linears);

// Workspace of one direction; see LinearWorkspace.
WorkspaceSize ForwardWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                               std::int64_t rank);
WorkspaceSize BackwardWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                                std::int64_t rank);

WorkspaceSize DotWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                           std::int64_t rank);

// Whether the rows are too few for panels, and what runs then.
bool UsesDots(const Kernels& kernels, std::span<const LinearView> linears,
              const ConstMatrixView& x);
void DotForward(const Machine& machine, std::span<const LinearView> linears,
                const ConstMatrixView& x, std::span<const LinearOutput> outputs, Store store);

// out(n, i) = drop(x)(n, i) for rows [row, row + out.rows) and columns [col, col + out.cols) of
// x(N, I), whose first row is `row` of the op's. out: float32.
void DropInputs(const LoraView& lora, const ConstMatrixView& x, std::int64_t row, std::int64_t col,
                const MatrixView& out);
// out(n, i) = out(n, i) * drop factor of element (row + n, col + i) of a matrix of `cols` columns.
void DropOutputs(const LoraView& lora, std::int64_t cols, std::int64_t row, std::int64_t col,
                 const MatrixView& out);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_LINEAR_PLAN_H_
