#include "tokenizer/lookup_tables.h"

#include <bit>
#include <utility>

namespace qlora {
namespace {

// A power of two with at least a third of the slots free.
std::size_t SlotsFor(std::size_t count) { return std::bit_ceil(count + count / 2 + 16); }

}  // namespace

PieceTable::PieceTable(std::size_t expected)
    : slots_(SlotsFor(expected), Slot{0, 0, 0, -1}), mask_(slots_.size() - 1) {}

void PieceTable::Place(const Slot& slot, std::uint64_t hash) {
  std::size_t i = hash & mask_;
  // Linear probing: the next slot is on the same cache line most of the time. A free slot always
  // comes, because a third of the slots is free.
  while (slots_[i].id >= 0) i = (i + 1) & mask_;
  slots_[i] = slot;
}

// Doubles the table when it is two thirds full.
bool PieceTable::Insert(std::string_view text, std::int32_t id) {
  if (Find(text) >= 0) return false;
  if (SlotsFor(++count_) > slots_.size()) {
    const std::vector<Slot> old =
        std::exchange(slots_, std::vector<Slot>(slots_.size() * 2, Slot{0, 0, 0, -1}));
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {  // a slot keeps half of its hash, so the rest is computed again
      if (slot.id >= 0) {
        Place(slot, HashBytes(std::string_view(texts_).substr(slot.offset, slot.length)));
      }
    }
  }
  // The lower half of the hash chooses the slot; the upper half, which the slot keeps, spares most
  // comparisons of texts.
  const std::uint64_t hash = HashBytes(text);
  Place({static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(texts_.size()),
         static_cast<std::uint32_t>(text.size()), id},
        hash);
  texts_.append(text);
  return true;
}

// Slots are chosen by the upper bits of the mixed key, which depend on all of its bits.
MergeTable::MergeTable(std::size_t expected)
    : slots_(SlotsFor(expected), Slot{kFree, {}}),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::Insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = Key(left, right);
  std::size_t i = MixBits(key) >> shift_;
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

PrefixTrie::PrefixTrie()
    : values_(1, -1),
      first_(256, -1),
      edges_(SlotsFor(0), Edge{0, -1}),
      mask_(edges_.size() - 1),
      shift_(64 - std::countr_zero(edges_.size())) {}

void PrefixTrie::AddEdge(std::uint64_t key, std::int32_t child) {
  std::size_t i = MixBits(key) >> shift_;
  while (edges_[i].key != 0) i = (i + 1) & mask_;
  edges_[i] = {key, child};
}

// A new node below `node`; the table of edges is doubled when it is full.
std::int32_t PrefixTrie::AddChild(std::int32_t node, unsigned char byte) {
  const auto child = static_cast<std::int32_t>(values_.size());
  values_.push_back(-1);
  if (node == 0) {
    first_[byte] = child;
    return child;
  }
  // The root's 256 children have a separate array: every lookup begins there, and most end
  // there.
  if (SlotsFor(++count_) > edges_.size()) {
    const std::vector<Edge> old =
        std::exchange(edges_, std::vector<Edge>(edges_.size() * 2, Edge{0, -1}));
    mask_ = edges_.size() - 1;
    // One more bit of the mixed key chooses among twice the slots.
    --shift_;
    for (const Edge& edge : old) {
      if (edge.key != 0) AddEdge(edge.key, edge.child);
    }
  }
  AddEdge(Key(node, byte), child);
  return child;
}

// Walks down from the root along the bytes of the key, and adds the nodes that are missing.
bool PrefixTrie::Insert(std::string_view key, std::int32_t value) {
  if (key.empty()) return false;
  std::int32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const std::int32_t child = Child(node, byte);
    node = child >= 0 ? child : AddChild(node, byte);
  }
  std::int32_t& slot = values_[node];
  if (slot >= 0) return false;
  slot = value;
  return true;
}

}  // namespace qlora
