#include "backend/cuda/workspace.h"

#include <algorithm>

#include "backend/cuda/attention_room.h"
#include "backend/cuda/kernels.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

// Room for `count` rows of `width` elements: for all of them, for `most` elements, or for the least
// part.
std::int64_t RoomFor(std::int64_t count, std::int64_t width, std::int64_t most,
                     std::int64_t least_part) {
  const std::int64_t padded = PaddedCols(width);
  return std::min(PaddedCols(count) * padded, std::max(most, least_part * padded));
}

Workspace::Pieces CarvePieces(Carver& carver, DType compute, const WorkspaceSize& size) {
  Workspace::Pieces p;
  p.weight = carver.Matrix(compute, 1, size.weight);
  p.inputs = carver.Matrix(compute, 1, size.inputs);
  p.gradients = carver.Matrix(compute, 1, size.gradients);
  p.a = carver.Matrix(compute, 1, size.adapter);
  p.b = carver.Matrix(compute, 1, size.adapter);
  p.low_rank = carver.Matrix(compute, 1, size.low_rank);
  p.wide_low_rank = carver.Matrix(DType::kF32, 1, size.low_rank);
  p.sums = carver.Matrix(DType::kF32, 1, size.sums);
  p.more_sums = carver.Matrix(DType::kF32, 1, size.sums);
  p.attention = carver.Matrix(DType::kF32, 1, size.attention);
  return p;
}

std::size_t ArenaBytes(DType compute, const WorkspaceSize& size) {
  Carver plan;
  CarvePieces(plan, compute, size);
  return std::max(plan.bytes(), static_cast<std::size_t>(size.room));
}

}  // namespace

WorkspaceSize SizeOf(const BackendLimits& limits, DType compute, const WorkspaceBudget& budget) {
  const std::int64_t rows = std::max(limits.rows, limits.vocab_rows);
  const std::int64_t width = std::max(limits.features, limits.vocab);
  const std::int64_t least = budget.least_part;
  // Operands, with the operands of adapters side by side or below. forward:   [x | u | 1 1] [W | B
  // | bias]^T    columns: features + more backward:  [dy | du] [W over A]              rows:
  // features + ranks
  const std::int64_t more = limits.lora_rank + kBiasColumns;
  const std::int64_t folded = limits.features + more;
  const std::int64_t folded_width = std::max(folded, limits.vocab);
  WorkspaceSize size;
  // The first has the added columns, the second the added rows.
  size.weight = std::max(RoomFor(width, folded, budget.weight, least),
                         RoomFor(folded_width, limits.features, budget.weight, least));
  const std::int64_t inputs = limits.in_features > 0 ? limits.in_features : limits.features;
  size.inputs = RoomFor(rows, inputs + more, budget.rows, least);
  if (limits.gradient_rows > 0) size.gradients = RoomFor(rows, folded_width, budget.rows, least);
  if (limits.lora_rank > 0) {
    size.sums = RoomFor(rows, limits.features, budget.sums, least);
    // Each linear of a group pads its own rank, and there are no more of them than ranks.
    size.low_rank = rows * kRowStep * limits.lora_rank;
    // A (R, I) of all linears, whose rows are padded, or B (O, R) of one of them.
    size.adapter = std::max(limits.lora_rank * PaddedCols(limits.features),
                            limits.features * PaddedCols(limits.lora_rank));
  }
  size.attention = AttentionRoom(limits);
  if (budget.has_library && compute == DType::kBF16) size.room = LibraryRoom(limits);
  return size;
}

WorkspaceSize Max(const WorkspaceSize& a, const WorkspaceSize& b) {
  return {std::max(a.weight, b.weight),       std::max(a.inputs, b.inputs),
          std::max(a.gradients, b.gradients), std::max(a.adapter, b.adapter),
          std::max(a.sums, b.sums),           std::max(a.low_rank, b.low_rank),
          std::max(a.attention, b.attention), std::max(a.room, b.room)};
}

std::size_t WorkspaceBytes(const BackendLimits& limits, DType compute,
                           const WorkspaceBudget& budget) {
  return ArenaBytes(compute, SizeOf(limits, compute, budget));
}

void Workspace::Reserve(const BackendLimits& limits, const WorkspaceBudget& budget) {
  // Piece by piece, because two limits may each be larger in another piece.
  size_ = Max(size_, SizeOf(limits, compute_, budget));
  const std::size_t bytes = ArenaBytes(compute_, size_);
  if (bytes > arena_.bytes()) {
    arena_ = Arena();  // first, so that both are never there at once
    arena_ = Arena(bytes, memory_);
  }
  Carver carver(arena_);
  pieces_ = CarvePieces(carver, compute_, size_);
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
