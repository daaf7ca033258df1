// The block sizes in which linears are cut into tasks, the scratch memory of a task, and the parts
// that the ways to run a group of linears share. Cuts depend on shapes alone, so results do not
// depend on the number of threads.
#ifndef QLORA_BACKEND_CPU_LINEAR_LINEAR_BLOCKS_H_
#define QLORA_BACKEND_CPU_LINEAR_LINEAR_BLOCKS_H_

#include <algorithm>
#include <span>

#include "backend/backend.h"
#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/gemm/prepacked.h"
#include "backend/cpu/gemm/weight_rows.h"
#include "backend/cpu/int8/coded_operand.h"
#include "backend/cpu/machine.h"
#include "base/arena.h"

namespace qlora::cpu {

// Linears of a group, at most: q, k and v are three.
inline constexpr std::int64_t kMostLinears = 4;
// Ranges of rows, each with its adapter, of a product of many rows: the lanes of each are whole
// vectors.
inline constexpr std::int64_t kMostRanges = 16;
// Rows of x that are packed at once: 1024 * 5632 bfloat16 inputs are 11 MiB of the third-level
// cache, and decoding a weight again for every 1024 rows costs 1 % of their products.
inline constexpr std::int64_t kRowChunk = 1024;
// Rows of a weight per task. Their sums over a row chunk, 48 * 1024 floats, stay in the
// second-level cache; 48 is a multiple of every tile height.
inline constexpr std::int64_t kWeightRows = 48;
// Values of k between two visits of a tile of sums, forward and backward: a panel of 64 lanes of
// them is 64 (32) KiB, half of a worker's share of the second-level cache at most.
inline constexpr std::int64_t kForwardDepth = 512;
inline constexpr std::int64_t kBackwardDepth = kDecodedRows;
static_assert(2 * kDecodedRows <= kForwardDepth);  // room of LinearScratch::panel and values
static_assert(CodedRows::kMost * kInt8Stride <= kForwardDepth * kChunk * 4);  // room of values
static_assert(kWeightRows % kPrepackedRows == 0 && kForwardDepth % (kPrepackedGroup * kChunk) == 0);
// Columns of dx per task: a cache line holds their 4-bit values, and dy is read once for them.
inline constexpr std::int64_t kInputGradientCols = CodedColumns::kMost;
static_assert(CodedRows::kMost <= 2 * kChunk);  // rows of LinearScratch::tile and low_rank
// Rows of dy per task of du = dy B, at most. Where there are few, tasks have an eighth of them, in
// multiples of 8: of every Kernels::step, because transposed operands are padded to it.
inline constexpr std::int64_t kGradientRows = 64;

// Scratch of one worker.
struct LinearScratch {
  MatrixView tile;      // sums: (kWeightRows, lanes), (rows of a chunk, cols) ...
  MatrixView low_rank;  // behind it, sums of the same shape, of the adapter before dropout
  MatrixView rows;      // (kWeightRows, k) rows operand
  MatrixView panel;     // (k, kChunk) panels, or two of (kBackwardDepth, kChunk)
  MatrixView scales;    // of kWeightRows rows of a weight
  MatrixView values;    // decoded weights or dropped inputs, before packing; scales; codes

  // cols: of the sums of a row of the chunk, kInputGradientCols for gradients of inputs.
  LinearScratch(Carver& carver, const Kernels& kernels, std::int64_t rows_of_chunk,
                std::int64_t features, std::int64_t rank, std::int64_t cols = kChunk) {
    const std::int64_t lanes = RoundUp(std::max(rows_of_chunk, rank), kChunk);
    tile = carver.Matrix(DType::kF32, 2 * lanes, cols);
    low_rank = Rows(tile, lanes, lanes);
    rows = carver.Matrix(ElementType(kernels), kWeightRows, PackedStride(kernels, kForwardDepth));
    panel = carver.Matrix(ElementType(kernels), kForwardDepth, kChunk);
    scales = carver.Matrix(DType::kF32, 1, WeightRows::ScaleCount(features, kWeightRows));
    values = carver.Matrix(DType::kF32, kForwardDepth, kChunk);
  }

  // Room for the factors of so many rows of a weight with `cols` columns.
  float* factors(std::int64_t count, std::int64_t cols) const {
    return HasPanelFor(count, cols) ? static_cast<float*>(panel.data) : scales.Row<float>(0);
  }
  static bool HasPanelFor(std::int64_t count, std::int64_t cols) {
    return count * (cols / kChunk) * 4 <= kForwardDepth * kChunk * 2;
  }
  // Room for CodedRows::kMost rows of codes.
  std::uint8_t* codes() const { return static_cast<std::uint8_t*>(values.data); }
  float* sums() const { return tile.Row<float>(0); }
  float* floats() const { return values.Row<float>(0); }
};

// One call of an op on a group of linears that read the same x: its arguments, and how its tasks
// are run. The ways to run it derive from this.
class LinearRun {
 protected:
  template <typename Op>
  LinearRun(const Machine& machine, const Op& op)
      : machine_(machine),
        kernels_(machine.kernels),
        linears_(op.linears),
        x_(op.x),
        store_(op.store) {}

  const LoraView& lora(std::int64_t l) const { return linears_[l].lora; }
  bool has_lora(std::int64_t l) const { return !lora(l).a.empty(); }
  // The outputs of a linear.
  std::int64_t features(std::int64_t l) const { return linears_[l].weight.rows(); }

  // Runs body(linear, part, worker) in parallel, for each part in [0, parts(linear)) of each
  // linear.
  template <typename Parts, typename Body>
  void ForEachPart(const Parts& parts, const Body& body) const {
    ParallelParts(machine_, std::ssize(linears_), parts, body);
  }

  const Machine& machine_;
  const Kernels& kernels_;
  const std::span<const LinearView> linears_;
  const ConstMatrixView& x_;  // (N, I)
  const Store store_;
};

// True for a weight that is multiplied in 8 bits.
inline bool IsCoded(const Kernels& kernels, const WeightView& weight) {
  return kernels.int8 != nullptr && int8::HasCodes(weight);
}
// The same of each linear of a group.
inline bool AreCoded(const Kernels& kernels, std::span<const LinearView> linears) {
  return std::ranges::all_of(
      linears, [&](const LinearView& linear) { return IsCoded(kernels, linear.weight); });
}

// Throws if a group has more than kMostLinears linears.
void CheckGroup(std::span<const LinearView> linears);
// The sum of the LoRA ranks in a group, the largest of all ranges of rows.
std::int64_t LargestRank(const ops::Linear& op);

// The two ways to run LinearForward, and their workspace for up to `rows` rows. Many rows have at
// most kMostRanges ranges, with which they are at most kRowChunk rows.
void ForwardFewRows(const Machine& machine, const ops::Linear& op);
void ForwardManyRows(const Machine& machine, const ops::Linear& op);
WorkspaceSize FewRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                               std::int64_t rank, bool any_order);
WorkspaceSize ManyRowsWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t ranges,
                                std::int64_t features, std::int64_t rank);
WorkspaceSize BackwardWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t features,
                                std::int64_t rank);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_LINEAR_LINEAR_BLOCKS_H_
