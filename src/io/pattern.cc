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

std::optional<std::string> Match(const std::string& pattern, std::uint32_t options,
                                 std::string_view text, std::string_view where,
                                 const char* group = nullptr) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Python's re.match is anchored at the start, re.fullmatch at both ends.
  const std::unique_ptr<pcre2_code, Free> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | options, &error, &offset, nullptr));
  // Patterns come from other people's files. Syntax of Python that PCRE2 does not know is an error,
  // never a pattern that matches nothing.
  if (code == nullptr) {
    ThrowInvalidInput("{}: '{}' is not a regular expression: {} at character {}", where, pattern,
                      MessageOf(error), offset);
  }
  const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  // Bounds the backtracking: (a+)+b on a long path would run for years.
  pcre2_set_match_limit(context.get(), kMaxSteps);
  const int count = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                0, 0, data.get(), context.get());
  if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (count < 0) {
    ThrowInvalidInput("{}: '{}' cannot be matched with '{}': {}", where, pattern, text,
                      MessageOf(count));
  }
  // Group 0 is the whole match.
  const int number = group == nullptr ? 0
                                      : pcre2_substring_number_from_name(
                                            code.get(), reinterpret_cast<PCRE2_SPTR>(group));
  // A group that took no part in the match, as in Python's None.
  if (number < 0 || number >= count) return std::string();
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get()) + 2 * number;
  if (bounds[0] == PCRE2_UNSET || bounds[0] > bounds[1]) return std::string();
  return std::string(text.substr(bounds[0], bounds[1] - bounds[0]));
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

}  // namespace qlora
