// The look-up tables of a tokenizer: text -> id, pair of ids -> merge, prefixes of text. All are
// hash tables with open addressing, whose entries are found in a cache line or two:
//
//     slots   [  | the 12 |  | of 5 | and 7 |  |  | ... ]     2^n slots, at most two thirds taken
//                              ^hash("and") points here; taken, so the next free slot is used
#ifndef QLORA_TOKENIZER_LOOKUP_TABLES_H_
#define QLORA_TOKENIZER_LOOKUP_TABLES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// A number whose upper bits depend on all bits of x.
inline std::uint64_t MixBits(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

// Takes eight bytes a step; good enough for tables that hold words. The names of data set indices
// on disk carry such hashes: another function would have every index built again.
inline std::uint64_t HashBytes(std::string_view text) {
  std::uint64_t hash = text.size() * 0x9E3779B97F4A7C15u;
  const char* p = text.data();
  std::size_t left = text.size();
  for (std::uint64_t word; left >= 8; p += 8, left -= 8) {
    std::memcpy(&word, p, 8);
    hash = MixBits(hash ^ word);
  }
  std::uint64_t tail = 0;
  if (left >= 4) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + left - 4, 4);
    tail = low | std::uint64_t{high} << 32;
  } else if (left > 0) {
    const auto at = [&](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])}; };
    tail = at(0) | at(left / 2) << 8 | at(left - 1) << 16;
  }
  hash = MixBits(hash ^ tail);
  return hash ^ hash >> 32;
}

// Text -> id. Owns its texts, which are stored one behind the other.
class PieceTable {
 public:
  explicit PieceTable(std::size_t expected = 0);
  // False, and no change, when the text is there already.
  bool Insert(std::string_view text, std::int32_t id);
  // -1 when absent.
  std::int32_t Find(std::string_view text) const {
    const std::uint64_t hash = HashBytes(text);
    for (std::size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id < 0) return -1;
      if (slot.hash == static_cast<std::uint32_t>(hash >> 32) && slot.length == text.size() &&
          std::memcmp(texts_.data() + slot.offset, text.data(), text.size()) == 0) {
        return slot.id;
      }
    }
  }

 private:
  struct Slot {
    std::uint32_t hash;
    std::uint32_t offset;
    std::uint32_t length;
    std::int32_t id;  // -1: free
  };
  void Place(const Slot& slot, std::uint64_t hash);

  std::string texts_;
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
};

struct Merge {
  std::uint32_t rank = kNone;
  std::int32_t id = -1;
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
};

// (left id, right id) -> rank and merged id.
class MergeTable {
 public:
  explicit MergeTable(std::size_t expected = 0);
  // A later merge of the same pair replaces the earlier one.
  void Insert(std::int32_t left, std::int32_t right, Merge merge);
  // rank == Merge::kNone when the pair does not merge.
  Merge Find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = Key(left, right);
    for (std::size_t i = MixBits(key) >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {};
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t Key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

// Byte strings and a value >= 0 for each; finds the strings that a text begins with. Node 0 is the
// root; an edge (node, byte) -> child is an entry of a hash table, except at the root, which has an
// array.
class PrefixTrie {
 public:
  PrefixTrie();
  // False, and no change, when the key is empty or there already.
  bool Insert(std::string_view key, std::int32_t value);

  // Calls visit(length, value) for every key that `text` begins with, short to long.
  template <typename Visit>
  void ForEachPrefix(std::string_view text, const Visit& visit) const {
    std::int32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = Child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) return;
      if (values_[node] >= 0) {
        visit(i + 1, values_[node]);
      }
    }
  }

 private:
  struct Edge {
    std::uint64_t key;  // node << 8 | byte, + 1; 0: free
    std::int32_t child;
  };
  static std::uint64_t Key(std::int32_t node, unsigned char byte) {
    return (static_cast<std::uint64_t>(node) << 8 | byte) + 1;
  }
  std::int32_t Child(std::int32_t node, unsigned char byte) const {
    if (node == 0) return first_[byte];
    const std::uint64_t key = Key(node, byte);
    for (std::size_t i = MixBits(key) >> shift_;; i = (i + 1) & mask_) {
      if (edges_[i].key == key) return edges_[i].child;
      if (edges_[i].key == 0) return -1;
    }
  }
  std::int32_t AddChild(std::int32_t node, unsigned char byte);
  void AddEdge(std::uint64_t key, std::int32_t child);

  std::vector<std::int32_t> values_;  // per node; -1: no key ends here
  std::vector<std::int32_t> first_;   // children of the root
  std::vector<Edge> edges_;
  std::size_t count_ = 0;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_LOOKUP_TABLES_H_
