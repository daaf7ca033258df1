#include "step/gradient_tree.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "quant/dynamic_map.h"

namespace qlora {
namespace {

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

// The most sums that wait while a replica adds its leaves. The last subtree stays in the gradients.
std::int64_t MostWaiting(const WindowSplit& window, int replica) {
  std::vector<IndexRange> held;
  std::int64_t most = 0;
  const IndexRange mine = window.LeavesOf(replica);
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

// The slice of a part, in whole blocks, that a replica adds up.
IndexRange SliceOf(int replica, int replicas, const IndexRange& part) {
  const std::int64_t blocks = part.size() / kDynamicBlock;
  return {part.begin + blocks * replica / replicas * kDynamicBlock,
          part.begin + blocks * (replica + 1) / replicas * kDynamicBlock};
}

MatrixView Slice(const MatrixView& values, const IndexRange& range) {
  return Columns(values, range.begin, range.size());
}

// The first `count` values of row i, as a matrix of its own.
MatrixView RowOf(const MatrixView& m, std::int64_t i, std::int64_t count) {
  return {Rows(m, i, 1).data, m.dtype, 1, count, count};
}

// A (1, n) range as rows of one block, which backends share out: every parameter begins at a
// multiple of a block.
MatrixView InRows(const MatrixView& range) { return Reshape(range, kDynamicBlock); }

Communicator::MutableBytes BytesOfRow(const MatrixView& row) {
  return {row.Row<std::byte>(0), BytesOf(row.dtype, row.cols)};
}

void CopyRow(Backend& backend, const MatrixView& from, const MatrixView& to) {
  if (from.cols > 0) backend.Run(ops::Copy{InRows(from), InRows(to)});
}

// The subtrees of all replicas, in the order of leaves.
std::vector<IndexRange> AllSubtrees(const WindowSplit& window) {
  std::vector<IndexRange> all;
  for (int replica = 0; replica < window.replicas; ++replica) {
    const std::vector<IndexRange> subtrees = window.SubtreesOf(replica);
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
Buffers LayOut(Carver& carver, const RankPlace& place, const std::vector<IndexRange>& parts,
               const ConstMatrixView& like) {
  const WindowSplit& split = place.split;
  std::int64_t waiting = 0;
  std::int64_t subtrees = 0;
  for (std::int64_t count = 1; count <= split.leaves(); ++count) {
    const WindowSplit window = split.WithMicroBatches(count);
    waiting = std::max(waiting, MostWaiting(window, place.replica()));
    subtrees = std::max(subtrees, std::ssize(AllSubtrees(window)));
  }
  Buffers buffers;
  for (std::int64_t i = 0; i < waiting; ++i) {
    buffers.waiting.push_back(carver.Matrix(like.dtype, like.rows, like.cols));
  }
  if (split.replicas > 1) {
    std::int64_t slice = 0;
    for (const IndexRange& part : parts) {
      slice = std::max(slice, SliceOf(place.replica(), split.replicas, part).size());
    }
    buffers.received = carver.Matrix(like.dtype, subtrees, slice);
  }
  return buffers;
}

// Adds the rows of `sums` (subtrees, n), one for each subtree, as the tree says. Returns the number
// of the row that holds the sum of `node`; next: the first row that is not used yet.
std::int64_t AddRows(Backend& backend, const IndexRange& node, std::int64_t n,
                     std::span<const IndexRange> subtrees, const MatrixView& sums,
                     std::int64_t& next) {
  if (subtrees[next] == node) return next++;
  const std::int64_t split = SplitOf(node);
  const std::int64_t left = AddRows(backend, {node.begin, split}, n, subtrees, sums, next);
  const std::int64_t right = AddRows(backend, {split, node.end}, n, subtrees, sums, next);
  backend.Run(ops::Add{InRows(RowOf(sums, right, n)), InRows(RowOf(sums, left, n))});
  return left;
}

}  // namespace

GradientTree::GradientTree(Memory& memory, const RankPlace& place,
                           std::vector<std::vector<IndexRange>> parts,
                           const ConstMatrixView& gradients)
    : place_(place),
      parts_(std::move(parts)),
      arena_(Bytes(place, parts_[place.stage()], gradients), memory) {
  Carver carver(arena_);
  Buffers buffers = LayOut(carver, place, parts_[place.stage()], gradients);
  waiting_ = std::move(buffers.waiting);
  received_ = buffers.received;
}

std::size_t GradientTree::Bytes(const RankPlace& place,
                                const std::vector<IndexRange>& parts_of_stage,
                                const ConstMatrixView& gradients) {
  Carver plan;
  LayOut(plan, place, parts_of_stage, gradients);
  return plan.bytes();
}

std::size_t GradientTree::BytesSent(const RankPlace& place,
                                    const std::vector<IndexRange>& parts_of_stage,
                                    const ConstMatrixView& gradients) {
  const WindowSplit& split = place.split;
  std::int64_t values = 0;
  for (const IndexRange& part : parts_of_stage) {
    const std::int64_t own = SliceOf(place.replica(), split.replicas, part).size();
    if (split.replicas > 1) {
      values += std::ssize(split.SubtreesOf(place.replica())) * (part.size() - own) +
                own * (split.replicas - 1);
    }
    values += part.size() * (place.stages - 1);
  }
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
  if (leaf + 1 < window.LeavesOf(place_.replica()).end) {
    backend.Run(ops::Copy{InRows(gradients), InRows(waiting_[held_.size()])});
  }
  held_.push_back(sum);
}

void GradientTree::Finish(Backend& backend, Communicator& communicator, const WindowSplit& window,
                          MatrixView gradients) {
  for (const IndexRange& part : parts_[place_.stage()]) {
    if (window.replicas > 1) AddOverReplicas(backend, communicator, window, part, gradients);
  }
  held_.clear();
  ShareStages(communicator, backend.memory(), gradients);
}

//   to_each     slice r of subtree s of this replica -> replica r, for s = 0, 1, ...
//   received_   slice of this replica of the subtrees of all replicas, in the order of leaves
void GradientTree::AddOverReplicas(Backend& backend, Communicator& communicator,
                                   const WindowSplit& window, const IndexRange& part,
                                   MatrixView gradients) {
  const auto slice = [&](int replica) { return SliceOf(replica, window.replicas, part); };
  const auto rank_of = [&](int replica) { return place_.RankOf(replica, place_.stage()); };
  const IndexRange own = slice(place_.replica());
  std::vector<std::vector<IndexRange>> subtrees;
  std::size_t rounds = 0;
  for (int replica = 0; replica < window.replicas; ++replica) {
    subtrees.push_back(window.SubtreesOf(replica));
    rounds = std::max(rounds, subtrees.back().size());
  }
  QLORA_DCHECK(held_ == subtrees[place_.replica()]);
  std::vector<Communicator::Bytes> to_each(static_cast<std::size_t>(communicator.size()));
  std::vector<Communicator::MutableBytes> from_each(to_each.size());
  for (std::size_t s = 0; s < rounds; ++s) {
    const MatrixView& sum = s + 1 < held_.size() ? waiting_[s] : gradients;
    auto row = static_cast<std::int64_t>(s);
    for (int replica = 0; replica < window.replicas; ++replica) {
      const int rank = rank_of(replica);
      to_each[rank] = {};
      from_each[rank] = {};
      const auto received = [&] { return RowOf(received_, row, own.size()); };
      if (replica == place_.replica()) {
        if (s < held_.size()) CopyRow(backend, Slice(sum, own), received());
      } else {
        if (s < held_.size()) to_each[rank] = BytesOfRow(Slice(sum, slice(replica)));
        if (s < subtrees[replica].size()) from_each[rank] = BytesOfRow(received());
      }
      row += std::ssize(subtrees[replica]);
    }
    communicator.Exchange(to_each, from_each, backend.memory());
  }
  std::int64_t next = 0;
  if (own.size() > 0)
    AddRows(backend, {0, window.leaves()}, own.size(), AllSubtrees(window), received_, next);
  const MatrixView total = RowOf(received_, 0, own.size());
  CopyRow(backend, total, Slice(gradients, own));
  for (int replica = 0; replica < window.replicas; ++replica) {
    if (replica == place_.replica()) continue;
    to_each[rank_of(replica)] = BytesOfRow(total);
    from_each[rank_of(replica)] = BytesOfRow(Slice(gradients, slice(replica)));
  }
  communicator.Exchange(to_each, from_each, backend.memory());
}

void GradientTree::ShareStages(Communicator& communicator, Memory& memory,
                               MatrixView values) const {
  if (place_.stages == 1) return;
  std::vector<Communicator::Bytes> to_each(static_cast<std::size_t>(communicator.size()));
  std::vector<Communicator::MutableBytes> from_each(to_each.size());
  for (std::size_t i = 0; i < parts_[0].size(); ++i) {
    for (int stage = 0; stage < place_.stages; ++stage) {
      if (stage == place_.stage()) continue;
      const int rank = place_.RankOf(place_.replica(), stage);
      to_each[rank] = BytesOfRow(Slice(values, parts_[place_.stage()][i]));
      from_each[rank] = BytesOfRow(Slice(values, parts_[stage][i]));
    }
    communicator.Exchange(to_each, from_each, memory);
  }
}

}  // namespace qlora
