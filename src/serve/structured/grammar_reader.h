// Reads a text by a grammar, byte for byte, and says what may follow.
//
// A position is all that the grammar allows to be going on behind a beginning of a text: a set of
// places, each with the rules that called it. Positions are numbered as they are met, and where a
// byte leads from one is found once.
#ifndef QLORA_SERVE_STRUCTURED_GRAMMAR_READER_H_
#define QLORA_SERVE_STRUCTURED_GRAMMAR_READER_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "serve/structured/byte_grammar.h"

namespace qlora {

class GrammarReader {
 public:
  using Position = std::uint32_t;
  // No text of the grammar begins so.
  static constexpr Position kNowhere = 0;
  // Rules that nest stand in each other no deeper; what would is left out.
  static constexpr std::uint32_t kMostDepth = ByteGrammar::kMostDepth;

  explicit GrammarReader(std::shared_ptr<const ByteGrammar> grammar);
  GrammarReader(const GrammarReader&) = delete;  // positions_ points into numbers_

  // Bounds the work from here on, until the next call: a unit is a place that is looked at. Errors,
  // of Next and ForgetOthers: InvalidInput beyond.
  void LimitWork(std::int64_t units) { work_left_ = units; }

  // That of an empty text, which is never kNowhere.
  Position begin() const { return begin_; }
  Position Next(Position position, unsigned char byte);
  // True where the text may end.
  bool CanEnd(Position position) const { return positions_[position].found->can_end; }

  // Bytes that positions and calls take, about.
  std::size_t bytes() const {
    return positions_.size() * (sizeof(Known) + sizeof(Found) + kNodeBytes) +
           places_ * sizeof(Place) + calls_.size() * (2 * sizeof(Calls) + kNodeBytes);
  }
  // Forgets all but this one, begin() among them. Returns its new number.
  Position ForgetOthers(Position position);

 private:
  // Calls that have not ended: where the last one goes on, and those before.
  struct Calls {
    GrammarState next;
    std::uint32_t before;
    std::uint32_t depth;  // of rules that nest

    auto operator<=>(const Calls&) const = default;
  };
  struct Place {
    GrammarState state;  // that reads a byte
    std::uint32_t calls;

    auto operator<=>(const Place&) const = default;
  };
  struct Found {
    std::vector<Place> places;  // ascending
    bool can_end = false;

    auto operator<=>(const Found&) const = default;
  };
  struct Known {
    const Found* found;  // in numbers_
    std::array<Position, 256> next;
  };

  static constexpr Position kUnknown = ~Position{0};
  // Ways to read a text that are followed at the same time. Further ones are left out.
  static constexpr std::size_t kMostPlaces = 1024;
  static constexpr std::size_t kNodeBytes = 48;  // of a map, beside its value

  // Work that a new position is, beside its places.
  static constexpr std::size_t kPositionWork = 64;

  void CountWork(std::size_t units);
  Found Follow(std::vector<Place> places);
  std::uint32_t Push(GrammarState next, std::uint32_t before, bool nests);
  Position Number(Found found);
  void Clear();

  std::shared_ptr<const ByteGrammar> grammar_;
  std::vector<Calls> calls_;  // 0: none
  std::map<Calls, std::uint32_t> call_numbers_;
  std::vector<Known> positions_;
  std::map<Found, Position> numbers_;
  std::size_t places_ = 0;  // of all positions
  Position begin_ = kNowhere;
  std::int64_t work_left_ = std::numeric_limits<std::int64_t>::max();
  std::unordered_set<std::uint64_t> seen_;  // of Follow
};

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_GRAMMAR_READER_H_
