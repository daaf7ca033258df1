#include "step/gradient_tree.h"

#include <algorithm>
#include <bit>

#include "quant/dynamic_map.h"

namespace qlora {
namespace {

// `count` matrices of the shape of the gradients. Used to measure the arena and to fill it.
std::vector<MatrixView> LayOutBuffers(Carver& carver, std::int64_t count,
                                      const ConstMatrixView& like) {
  std::vector<MatrixView> buffers;
  for (std::int64_t i = 0; i < count; ++i) {
    buffers.push_back(carver.Matrix(like.dtype, like.rows, like.cols));
  }
  return buffers;
}

// A (1, n) range as rows of one block, which backends share out: every parameter begins at a
// multiple of a block.
MatrixView InRows(const MatrixView& range) { return Reshape(range, kDynamicBlock); }

}  // namespace

GradientTree::GradientTree(Memory& memory, std::int64_t micro_batches,
                           const ConstMatrixView& gradients)
    : arena_(Bytes(micro_batches, gradients), memory) {
  Carver carver(arena_);
  waiting_ = LayOutBuffers(carver, Buffers(micro_batches), gradients);
}

std::int64_t GradientTree::Leaves(std::int64_t micro_batches) {
  return std::min(micro_batches, kReductionGroups);
}

// The leaves differ by at most one micro-batch in size.
std::int64_t GradientTree::LeafBegin(std::int64_t leaf, std::int64_t micro_batches) {
  return leaf * micro_batches / Leaves(micro_batches);
}

// When leaf v begins, a left sibling waits for each 1 in the binary form of v. A number below
// `leaves` has at most floor(log2(leaves)) of them.
std::int64_t GradientTree::Buffers(std::int64_t micro_batches) {
  const auto leaves = static_cast<std::uint64_t>(Leaves(micro_batches));
  return leaves == 0 ? 0 : std::bit_width(leaves) - 1;
}

std::size_t GradientTree::Bytes(std::int64_t micro_batches, const ConstMatrixView& gradients) {
  Carver plan;
  LayOutBuffers(plan, Buffers(micro_batches), gradients);
  return plan.bytes();
}

// The subtrees that wait form a binary counter: leaf v completes a pair for each trailing 1
// of v, and the last leaf completes whatever is left. a + b and b + a have the same bits.
void GradientTree::AddLeaf(Backend& backend, std::int64_t leaf, std::int64_t leaves,
                           MatrixView gradients) {
  const bool last = leaf + 1 == leaves;
  const auto pairs = std::countr_one(static_cast<std::uint64_t>(leaf));
  for (std::int64_t done = 0; depth_ > 0 && (last || done < pairs); ++done) {
    backend.Run(ops::Add{InRows(waiting_[--depth_]), InRows(gradients)});
  }
  if (!last) backend.Run(ops::Copy{InRows(gradients), InRows(waiting_[depth_++])});
}

}  // namespace qlora
