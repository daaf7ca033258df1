#include "backend/cuda/workspace.h"

#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/few_rows.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

// Large enough for products at full speed: 4096 rows of 14336 columns of a weight, and 1024 rows of
// activations of that width; sums of 2048 x 2048, which stay in the cache of a data-centre GPU.
constexpr std::int64_t kWeightElements = std::int64_t{64} << 20;
constexpr std::int64_t kRowElements = std::int64_t{16} << 20;
constexpr std::int64_t kSumElements = std::int64_t{4} << 20;
// The least rows or columns that a part has.
constexpr std::int64_t kLeastPart = 64;

// Room for rows of `width` elements: all of them, or `most` elements, or kLeastPart rows.
std::int64_t RoomFor(std::int64_t rows, std::int64_t width, std::int64_t most) {
  const std::int64_t padded = PaddedCols(width);
  return std::min(rows * padded, std::max(most, kLeastPart * padded));
}

}  // namespace

WorkspaceSize SizeOf(const BackendLimits& limits) {
  const std::int64_t rows = std::max(limits.rows, limits.vocab_rows);
  const std::int64_t width = std::max(limits.features, limits.vocab);
  WorkspaceSize size;
  size.weight = RoomFor(PaddedCols(width), limits.features, kWeightElements);
  size.weight = std::max(size.weight, RoomFor(PaddedCols(limits.features), width, kWeightElements));
  size.inputs = RoomFor(rows, limits.features, kRowElements);
  size.sums = RoomFor(std::max<std::int64_t>(rows, 1), width, kSumElements);
  size.low_rank = rows * PaddedCols(limits.lora_rank) * (limits.lora_rank > 0 ? 1 : 0);
  if (limits.lora_rank > 0) {
    // Each linear of a group pads its own rank, and there are no more of them than ranks.
    const std::int64_t ranks = kRowStep * limits.lora_rank;
    size.low_rank = rows * ranks;
    size.adapter = ranks * PaddedCols(limits.features);
  }
  if (limits.gradient_rows > 0) size.gradients = RoomFor(rows, width, kRowElements);
  size.few_rows = FewRowsRoom(rows, width, limits.features);
  size.attention = AttentionRoom(limits);
  return size;
}

WorkspaceSize Max(const WorkspaceSize& a, const WorkspaceSize& b) {
  return {std::max(a.weight, b.weight),       std::max(a.inputs, b.inputs),
          std::max(a.gradients, b.gradients), std::max(a.adapter, b.adapter),
          std::max(a.sums, b.sums),           std::max(a.low_rank, b.low_rank),
          std::max(a.few_rows, b.few_rows),   std::max(a.attention, b.attention)};
}

Workspace::Pieces Workspace::Carve(Carver& carver, const WorkspaceSize& size) const {
  Pieces p;
  p.weight = carver.Matrix(compute_, 1, size.weight);
  p.inputs = carver.Matrix(compute_, 1, size.inputs);
  p.gradients = carver.Matrix(compute_, 1, size.gradients);
  p.a = carver.Matrix(compute_, 1, size.adapter);
  p.b = carver.Matrix(compute_, 1, size.adapter);
  p.low_rank = carver.Matrix(compute_, 1, size.low_rank);
  p.wide_low_rank = carver.Matrix(DType::kF32, 1, size.low_rank);
  p.sums = carver.Matrix(DType::kF32, 1, size.sums);
  p.more_sums = carver.Matrix(DType::kF32, 1, size.adapter > 0 ? size.sums : 0);
  p.few_rows = carver.Matrix(DType::kF32, 1, size.few_rows);
  p.attention = carver.Matrix(DType::kF32, 1, size.attention);
  return p;
}

std::size_t Workspace::BytesOf(const WorkspaceSize& size) const {
  Carver plan;
  Carve(plan, size);
  return plan.bytes();
}

void Workspace::Reserve(const WorkspaceSize& size) {
  const WorkspaceSize all = Max(size, size_);
  const std::size_t bytes = BytesOf(all);
  if (bytes > arena_.bytes()) {
    arena_ = Arena();  // first, so that both are never there at once
    arena_ = Arena(bytes, memory_);
  }
  Carver carver(arena_);
  pieces_ = Carve(carver, all);
  size_ = all;
}

MatrixView PlaceIn(const MatrixView& piece, std::int64_t rows, std::int64_t cols,
                   std::int64_t used) {
  const std::int64_t stride = PaddedCols(cols);
  if (used + rows * stride > piece.cols) {
    ThrowRuntime(
        "cuda backend: an op needs {} elements of workspace, {} are reserved; call Reserve with "
        "limits that cover the op (a bug of the caller)",
        used + rows * stride, piece.cols);
  }
  return {static_cast<std::byte*>(piece.data) + qlora::BytesOf(piece.dtype, used), piece.dtype,
          rows, cols, stride};
}

}  // namespace qlora::cuda
