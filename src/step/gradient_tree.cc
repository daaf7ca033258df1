#include "step/gradient_tree.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/matrix.h"
#include "quant/dynamic_map.h"

namespace qlora {
namespace {

// Where the leaves [begin, end) of a node part: the left child takes the largest power of two.
std::int64_t SplitOf(const IndexRange& node) {
  return node.begin +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(node.size() - 1)));
}

// Adds the largest nodes below `node` that lie within `range`.
void AddSubtrees(const IndexRange& node, const IndexRange& range, std::vector<IndexRange>& found) {
  if (node.end <= range.begin || range.end <= node.begin) return;
  if (range.begin <= node.begin && node.end <= range.end) {
    found.push_back(node);
    return;
  }
  const std::int64_t split = SplitOf(node);
  AddSubtrees({node.begin, split}, range, found);
  AddSubtrees({split, node.end}, range, found);
}

// True when `left` and `right` are the children of a node of the tree.
bool AreSiblings(const IndexRange& left, const IndexRange& right, std::int64_t leaves) {
  IndexRange node = {0, leaves};
  while (node.size() > 1) {
    const std::int64_t split = SplitOf(node);
    if (node.begin == left.begin && split == left.end && node.end == right.end) return true;
    node = left.begin < split ? IndexRange{node.begin, split} : IndexRange{split, node.end};
  }
  return false;
}

// The most sums that wait while a rank adds its leaves. The last subtree stays in the gradients.
std::int64_t MostWaiting(const WindowSplit& window, int rank) {
  std::vector<IndexRange> held;
  std::int64_t most = 0;
  const IndexRange mine = window.LeavesOf(rank);
  for (std::int64_t leaf = mine.begin; leaf < mine.end; ++leaf) {
    most = std::max(most, std::ssize(held));
    IndexRange sum = {leaf, leaf + 1};
    while (!held.empty() && AreSiblings(held.back(), sum, window.leaves())) {
      sum.begin = held.back().begin;
      held.pop_back();
    }
    held.push_back(sum);
  }
  return most;
}

// Slice `rank` of n values, in whole blocks.
IndexRange SliceOf(int rank, int ranks, std::int64_t n) {
  const std::int64_t blocks = n / kDynamicBlock;
  return {blocks * rank / ranks * kDynamicBlock, blocks * (rank + 1) / ranks * kDynamicBlock};
}

MatrixView Slice(const MatrixView& values, const IndexRange& range) {
  return Columns(values, range.begin, range.size());
}

// A (1, n) range as rows of one block, which backends share out: every parameter begins at a
// multiple of a block.
MatrixView InRows(const MatrixView& range) { return Reshape(range, kDynamicBlock); }

Communicator::MutableBytes BytesOfRow(const MatrixView& row) {
  return {row.Row<std::byte>(0), BytesOf(row.dtype, row.cols)};
}

// The subtrees of all ranks, in the order of leaves.
std::vector<IndexRange> AllSubtrees(const WindowSplit& window) {
  std::vector<IndexRange> all;
  for (int rank = 0; rank < window.ranks; ++rank) {
    const std::vector<IndexRange> subtrees = window.SubtreesOf(rank);
    all.insert(all.end(), subtrees.begin(), subtrees.end());
  }
  return all;
}

struct Buffers {
  std::vector<MatrixView> waiting;
  MatrixView received;
};

// Used to measure the arena and to fill it. A window at the end of an epoch has fewer leaves, and
// may wait for more sums than a full one.
Buffers LayOut(Carver& carver, const WindowSplit& split, int rank, const ConstMatrixView& like) {
  std::int64_t waiting = 0;
  std::int64_t subtrees = 0;
  for (std::int64_t count = 1; count <= std::min(split.micro_batches, split.reduction_groups);
       ++count) {
    const WindowSplit window = split.WithMicroBatches(count);
    waiting = std::max(waiting, MostWaiting(window, rank));
    subtrees = std::max(subtrees, std::ssize(AllSubtrees(window)));
  }
  Buffers buffers;
  for (std::int64_t i = 0; i < waiting; ++i) {
    buffers.waiting.push_back(carver.Matrix(like.dtype, like.rows, like.cols));
  }
  if (split.ranks > 1) {
    const std::int64_t slice = SliceOf(rank, split.ranks, like.cols).size();
    buffers.received = carver.Matrix(like.dtype, subtrees, slice);
  }
  return buffers;
}

// Adds the rows of `sums`, one for each subtree, as the tree says. Returns the number of the row
// that holds the sum of `node`; next: the first row that is not used yet.
std::int64_t AddRows(Backend& backend, const IndexRange& node, const MatrixView& sums,
                     std::span<const IndexRange> subtrees, std::int64_t& next) {
  if (subtrees[next] == node) return next++;
  const std::int64_t split = SplitOf(node);
  const std::int64_t left = AddRows(backend, {node.begin, split}, sums, subtrees, next);
  const std::int64_t right = AddRows(backend, {split, node.end}, sums, subtrees, next);
  backend.Run(ops::Add{InRows(Rows(sums, right, 1)), InRows(Rows(sums, left, 1))});
  return left;
}

}  // namespace

std::int64_t WindowSplit::leaves() const { return std::min(micro_batches, reduction_groups); }

IndexRange WindowSplit::MicroBatchesOf(std::int64_t leaf) const {
  const std::int64_t count = leaves();
  return {leaf * micro_batches / count, (leaf + 1) * micro_batches / count};
}

IndexRange WindowSplit::LeavesOf(int rank) const {
  return {leaves() * rank / ranks, leaves() * (rank + 1) / ranks};
}

IndexRange WindowSplit::MicroBatchesOfRank(int rank) const {
  const IndexRange mine = LeavesOf(rank);
  const std::int64_t count = leaves();
  return {mine.begin * micro_batches / count, mine.end * micro_batches / count};
}

std::vector<IndexRange> WindowSplit::SubtreesOf(int rank) const {
  std::vector<IndexRange> found;
  AddSubtrees({0, leaves()}, LeavesOf(rank), found);
  return found;
}

WindowSplit WindowSplit::WithMicroBatches(std::int64_t count) const {
  return {count, reduction_groups, ranks};
}

GradientTree::GradientTree(Memory& memory, const WindowSplit& split, int rank,
                           const ConstMatrixView& gradients)
    : split_(split), rank_(rank), arena_(Bytes(split, rank, gradients), memory) {
  Carver carver(arena_);
  Buffers buffers = LayOut(carver, split, rank, gradients);
  waiting_ = std::move(buffers.waiting);
  received_ = buffers.received;
}

std::size_t GradientTree::Bytes(const WindowSplit& split, int rank,
                                const ConstMatrixView& gradients) {
  Carver plan;
  LayOut(plan, split, rank, gradients);
  return plan.bytes();
}

std::size_t GradientTree::BytesSent(const WindowSplit& split, int rank,
                                    const ConstMatrixView& gradients) {
  const std::int64_t own = SliceOf(rank, split.ranks, gradients.cols).size();
  const std::int64_t values =
      std::ssize(split.SubtreesOf(rank)) * (gradients.cols - own) + own * (split.ranks - 1);
  return BytesOf(gradients.dtype, values);
}

// Subtrees are completed like the digits of a binary counter. a + b and b + a have the same bits.
void GradientTree::AddLeaf(Backend& backend, const WindowSplit& window, std::int64_t leaf,
                           MatrixView gradients) {
  IndexRange sum = {leaf, leaf + 1};
  while (!held_.empty() && AreSiblings(held_.back(), sum, window.leaves())) {
    backend.Run(ops::Add{InRows(waiting_[held_.size() - 1]), InRows(gradients)});
    sum.begin = held_.back().begin;
    held_.pop_back();
  }
  if (leaf + 1 < window.LeavesOf(rank_).end) {
    backend.Run(ops::Copy{InRows(gradients), InRows(waiting_[held_.size()])});
  }
  held_.push_back(sum);
}

//   to_each     slice r of subtree s of this rank  -> rank r, for s = 0, 1, ...
//   received_   slice of this rank of the subtrees of all ranks, in the order of leaves
void GradientTree::Finish(Backend& backend, Communicator& communicator, const WindowSplit& window,
                          MatrixView gradients) {
  if (window.ranks == 1) {
    held_.clear();
    return;
  }
  const std::int64_t n = gradients.cols;
  const IndexRange own = SliceOf(rank_, window.ranks, n);
  std::vector<std::vector<IndexRange>> subtrees;
  std::size_t rounds = 0;
  for (int rank = 0; rank < window.ranks; ++rank) {
    subtrees.push_back(window.SubtreesOf(rank));
    rounds = std::max(rounds, subtrees.back().size());
  }
  QLORA_DCHECK(held_ == subtrees[rank_]);
  std::vector<Communicator::Bytes> to_each(subtrees.size());
  std::vector<Communicator::MutableBytes> from_each(subtrees.size());
  for (std::size_t s = 0; s < rounds; ++s) {
    std::int64_t row = static_cast<std::int64_t>(s);
    for (int rank = 0; rank < window.ranks; ++rank) {
      const bool sends = s < held_.size();
      const MatrixView& sum = s + 1 < held_.size() ? waiting_[s] : gradients;
      to_each[rank] =
          sends ? BytesOfRow(Slice(sum, SliceOf(rank, window.ranks, n))) : Communicator::Bytes();
      const bool receives = s < subtrees[rank].size();
      from_each[rank] =
          receives ? BytesOfRow(Rows(received_, row, 1)) : Communicator::MutableBytes();
      row += std::ssize(subtrees[rank]);
    }
    communicator.Exchange(to_each, from_each);
  }
  held_.clear();
  std::int64_t next = 0;
  if (own.size() > 0) {
    AddRows(backend, {0, window.leaves()}, received_, AllSubtrees(window), next);
  }
  for (int rank = 0; rank < window.ranks; ++rank) {
    to_each[rank] = BytesOfRow(Rows(received_, 0, 1));
    from_each[rank] = BytesOfRow(Slice(gradients, SliceOf(rank, window.ranks, n)));
  }
  communicator.Exchange(to_each, from_each);
}

}  // namespace qlora
