#include "io/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::uint32_t kMaxSteps = 1'000'000;  // a sane pattern on a module path takes hundreds

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string MessageOf(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// A compiled pattern and its last match.
class Matcher {
 public:
  Matcher(const std::string& pattern, std::uint32_t options, std::string_view where)
      : pattern_(pattern), where_(where) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | options, &error, &offset, nullptr));
    // Patterns come from other people's files. Syntax of Python that PCRE2 does not know is an
    // error, never a pattern that matches nothing.
    if (code_ == nullptr) {
      ThrowInvalidInput("{}: '{}' is not a regular expression: {} at character {}", where, pattern,
                        MessageOf(error), offset);
    }
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    // Bounds the backtracking: (a+)+b on a long path would run for years.
    pcre2_set_match_limit(context_.get(), kMaxSteps);
  }

  // Looks from byte `start` on.
  bool Find(std::string_view text, std::size_t start = 0, std::uint32_t options = 0) {
    count_ = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                         options, data_.get(), context_.get());
    if (count_ == PCRE2_ERROR_NOMATCH) return false;
    if (count_ < 0) {
      ThrowInvalidInput("{}: '{}' cannot be matched with '{}': {}", where_, pattern_, text,
                        MessageOf(count_));
    }
    text_ = text;
    return true;
  }

  int NumberOf(const char* group) const {
    return pcre2_substring_number_from_name(code_.get(), reinterpret_cast<PCRE2_SPTR>(group));
  }
  int groups() const {
    std::uint32_t count = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_CAPTURECOUNT, &count);
    return static_cast<int>(count);
  }
  // The text of a group of the last match; 0: the whole. "" for a group that took no part in the
  // match, as Python's None.
  std::string_view Group(int number) const {
    if (number < 0 || number >= count_) return {};
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get()) + 2 * number;
    if (bounds[0] == PCRE2_UNSET || bounds[0] > bounds[1]) return {};
    return text_.substr(bounds[0], bounds[1] - bounds[0]);
  }
  std::size_t begin() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
  std::size_t end() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

 private:
  const std::string& pattern_;
  std::string_view where_;
  std::string_view text_;
  int count_ = 0;
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
  std::unique_ptr<pcre2_match_context, Free> context_;
};

// Calls visit for each match, from left to right: behind an empty match, one that is not empty is
// looked for at the same place, as Python does since 3.7.
template <typename Visit>
void ForEachMatch(Matcher& matcher, std::string_view text, const Visit& visit) {
  std::size_t at = 0;
  bool was_empty = false;
  while (at <= text.size()) {
    // The first search has found the whole text to be UTF-8.
    const std::uint32_t known = at == 0 ? 0 : PCRE2_NO_UTF_CHECK;
    const std::uint32_t options = was_empty ? PCRE2_NOTEMPTY_ATSTART : 0;
    if (!matcher.Find(text, at, known | options)) return;
    visit();
    at = matcher.end();
    was_empty = matcher.begin() == matcher.end();
  }
}

std::optional<std::string> Match(const std::string& pattern, std::uint32_t options,
                                 std::string_view text, std::string_view where,
                                 const char* group = nullptr) {
  // Python's re.match is anchored at the start, re.fullmatch at both ends.
  Matcher matcher(pattern, PCRE2_ANCHORED | options, where);
  if (!matcher.Find(text)) return std::nullopt;
  return std::string(matcher.Group(group == nullptr ? 0 : matcher.NumberOf(group)));
}

}  // namespace

bool FullMatch(const std::string& pattern, std::string_view text, std::string_view where) {
  return Match(pattern, PCRE2_ENDANCHORED, text, where).has_value();
}

bool MatchesAtStart(const std::string& pattern, std::string_view text, std::string_view where) {
  return Match(pattern, 0, text, where).has_value();
}

std::optional<std::string> GroupAtStart(const std::string& pattern, std::string_view text,
                                        std::string_view where, const char* name) {
  return Match(pattern, 0, text, where, name);
}

std::vector<std::vector<std::string>> FindAll(const std::string& pattern, std::string_view text,
                                              std::string_view where) {
  Matcher matcher(pattern, PCRE2_UCP, where);
  std::vector<std::vector<std::string>> found;
  ForEachMatch(matcher, text, [&] {
    std::vector<std::string>& groups = found.emplace_back();
    const int last = matcher.groups();
    for (int i = last == 0 ? 0 : 1; i <= last; ++i) groups.emplace_back(matcher.Group(i));
  });
  return found;
}

std::vector<std::string> SplitAtMatches(const std::string& pattern, std::string_view text,
                                        std::string_view where) {
  Matcher matcher(pattern, PCRE2_UCP, where);
  std::vector<std::string> parts;
  std::size_t at = 0;
  ForEachMatch(matcher, text, [&] {
    parts.emplace_back(text.substr(at, matcher.begin() - at));
    at = matcher.end();
  });
  parts.emplace_back(text.substr(at));
  return parts;
}

std::string ReplaceMatches(const std::string& pattern, std::string_view replacement,
                           std::string_view text, std::string_view where) {
  Matcher matcher(pattern, PCRE2_UCP, where);
  std::string out;
  std::size_t at = 0;
  ForEachMatch(matcher, text, [&] {
    out += text.substr(at, matcher.begin() - at);
    out += replacement;
    at = matcher.end();
  });
  out += text.substr(at);
  return out;
}

}  // namespace qlora
