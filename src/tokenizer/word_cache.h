// A memory of words that were encoded before: most words of a text are among a few thousand. One
// per thread, so that it needs no lock.
#ifndef QLORA_TOKENIZER_WORD_CACHE_H_
#define QLORA_TOKENIZER_WORD_CACHE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/lookup_tables.h"

namespace qlora {

// Each word has two places, where the latest two words that share them stay.
class WordCache {
 public:
  // As much as fits into a cache line with two lengths.
  static constexpr std::int64_t kMaxBytes = 26;
  static constexpr std::int64_t kMaxIds = 9;

  WordCache() : pairs_(kPairs) {}

  static std::uint64_t Hash(std::string_view word) { return HashBytes(word); }

  // Appends the ids of the word, if it is known. word has 1 to kMaxBytes bytes.
  bool Append(std::string_view word, std::uint64_t hash, std::vector<std::int32_t>* ids) const {
    for (const Entry& entry : pairs_[hash % kPairs]) {
      if (entry.bytes == word.size() && std::memcmp(entry.text, word.data(), word.size()) == 0) {
        ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
        return true;
      }
    }
    return false;
  }

  void Insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (std::ssize(ids) > kMaxIds) return;
    auto& [latest, older] = pairs_[hash % kPairs];
    older = latest;
    latest.bytes = static_cast<std::uint8_t>(word.size());
    latest.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(latest.text, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), latest.ids);
  }

 private:
  static constexpr std::int64_t kPairs = 1 << 14;  // 2 MiB in all, a core's second-level cache

  struct alignas(64) Entry {
    std::uint8_t bytes = 0;  // 0: free
    std::uint8_t count = 0;
    char text[kMaxBytes] = {};
    std::int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<std::array<Entry, 2>> pairs_;
};

}  // namespace qlora

#endif  // QLORA_TOKENIZER_WORD_CACHE_H_
