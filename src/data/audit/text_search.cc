#include "data/audit/text_search.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "base/text.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr char kFree = 0;
constexpr char kOfTurn = 1;
constexpr char kTaken = 2;

// Shorter texts are parts of other words by chance.
constexpr std::size_t kShort = 8;
// How much of a turn the prompt may write: "<think>\n".
constexpr std::size_t kPromptBytes = 64;

bool IsWordCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// True when a word goes on over the bound between two neighbouring characters.
bool Joins(char before, char after) { return IsWordCharacter(before) && IsWordCharacter(after); }

// True when no word goes on over the bounds of [begin, end).
bool IsWord(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !Joins(text[begin - 1], text[begin])) &&
         (end == text.size() || !Joins(text[end - 1], text[end]));
}

// Reads "XXXX" at `at`; nothing where there are no four digits.
std::optional<char32_t> HexAt(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return std::nullopt;
  char32_t value = 0;
  for (const char c : text.substr(at, 4)) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    const int digit = c <= '9' ? c - '0' : (std::tolower(static_cast<unsigned char>(c)) - 'a' + 10);
    value = value * 16 + static_cast<char32_t>(digit);
  }
  return value;
}

std::int64_t CountPlaces(std::string_view text, std::string_view part) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// Short essences are parts of others by chance.
bool HasEssence(std::string_view all, std::string_view part) {
  const std::string essence = EssenceOf(part);
  return essence.empty() || (essence.size() >= kShort && all.find(essence) != all.npos);
}

}  // namespace

// A backslash goes with the letter that it makes a line end or tab of.
std::string EssenceOf(std::string_view text) {
  constexpr std::string_view kBlankLetters = "ntrbf";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      const char next = i + 1 < text.size() ? text[i + 1] : ' ';
      const auto hex = next == 'u' ? HexAt(text, i + 2) : std::nullopt;
      if (hex) {
        char32_t character = *hex;
        i += 5;
        const bool is_first = character >= 0xD800 && character < 0xDC00;
        if (is_first && text.substr(i + 1).starts_with("\\u")) {
          const char32_t second = HexAt(text, i + 3).value_or(0);
          character = 0x10000 + ((character - 0xD800) << 10) + (second - 0xDC00);
          i += 6;
        }
        AppendUtf8(character, &out);
      } else if (kBlankLetters.find(next) != kBlankLetters.npos) {
        ++i;
      }
      continue;
    }
    if (c == '"' || c == '\'' || std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

TextSearch::TextSearch(std::string_view text, std::span<const TextPlace> turns)
    : text_(text), turns_(turns), state_(text.size(), kFree) {
  for (const TextPlace& turn : turns) {
    std::fill(state_.begin() + static_cast<std::ptrdiff_t>(turn.begin),
              state_.begin() + static_cast<std::ptrdiff_t>(turn.end), kOfTurn);
  }
}

std::optional<TextPlace> TextSearch::Take(std::string_view part, TextPlace area, std::size_t from,
                                          bool outside) {
  part = Trim(part);
  if (part.empty()) return TextPlace{from, from};
  const std::string_view within = text_.substr(0, area.end);
  for (std::size_t at = within.find(part, from); at != within.npos;
       at = within.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if (part.size() < kShort && !IsWord(text_, at, end)) continue;
    const auto is_free = [outside](char state) {
      return state == kFree || (!outside && state == kOfTurn);
    };
    const auto begin = state_.begin() + static_cast<std::ptrdiff_t>(at);
    const auto behind = state_.begin() + static_cast<std::ptrdiff_t>(end);
    if (!std::all_of(begin, behind, is_free)) continue;
    std::fill(begin, behind, kTaken);
    return TextPlace{at, end};
  }
  return std::nullopt;
}

std::optional<TextPlace> TextSearch::TakeOutside(std::string_view part) {
  const TextPlace all = {0, text_.size()};
  std::optional<TextPlace> place = Take(part, all, next_, /*outside=*/true);
  if (!place) place = Take(part, all, 0, /*outside=*/true);
  if (place) {
    next_ = place->end;
    ++uses_[EssenceOf(part)];
  }
  return place;
}

TextPlace TextSearch::AreaOf(std::size_t turn) const {
  const std::size_t before = turn == 0 ? 0 : turns_[turn - 1].end;
  const std::size_t begin = turns_[turn].begin;
  return {std::max(before, begin - std::min(begin, kPromptBytes)), turns_[turn].end};
}

std::optional<TextPlace> TextSearch::TakeWithin(std::string_view part, std::size_t turn) {
  const TextPlace& place = turns_[turn];
  if (const auto found = Take(part, place, place.begin, /*outside=*/false)) return found;
  // A text that the prompt begins ends in the turn.
  const TextPlace area = AreaOf(turn);
  part = Trim(part);
  if (part.size() <= kShort) return std::nullopt;
  const std::size_t at = text_.substr(0, area.end).find(part, area.begin);
  if (at >= place.begin || at + part.size() <= place.begin) return std::nullopt;
  return TextPlace{at, at + part.size()};
}

bool TextSearch::HasOutside(std::string_view part) {
  if (!outside_) {
    outside_ = "";
    std::size_t begin = 0;
    for (const TextPlace& turn : turns_) {
      *outside_ += EssenceOf(text_.substr(begin, turn.begin - begin)) + '\n';
      begin = turn.end;
    }
    *outside_ += EssenceOf(text_.substr(begin));
  }
  if (!HasEssence(*outside_, part)) return false;
  const std::string essence = EssenceOf(part);
  return essence.empty() || ++uses_[essence] <= CountPlaces(*outside_, essence);
}

// The prompt may have begun the text, but not ended it.
bool TextSearch::HasWithin(std::string_view part, std::size_t turn) const {
  const TextPlace area = AreaOf(turn);
  const std::size_t begin = turns_[turn].begin;
  const std::string before = EssenceOf(text_.substr(area.begin, begin - area.begin));
  const std::string all = before + EssenceOf(text_.substr(begin, area.end - begin));
  const std::size_t size = std::max<std::size_t>(EssenceOf(part).size(), 1);
  return HasEssence(std::string_view(all).substr(before.size() - std::min(before.size(), size - 1)),
                    part);
}

bool TextSearch::HasAnywhere(std::string_view part) {
  part = Trim(part);
  if (part.empty()) return true;
  for (std::size_t at = text_.find(part); at != text_.npos; at = text_.find(part, at + 1)) {
    if (part.size() >= kShort || IsWord(text_, at, at + part.size())) return true;
  }
  if (!all_) all_ = EssenceOf(text_);
  return HasEssence(*all_, part);
}

}  // namespace qlora
