// Texts as Python's str sees them: sequences of characters, over valid UTF-8.
#ifndef QLORA_JINJA_PYTHON_STR_H_
#define QLORA_JINJA_PYTHON_STR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/work_budget.h"

namespace qlora::jinja {

bool IsPythonSpace(char32_t c);  // str.isspace
// Byte offset of character `index` (not negative), or the size of the text when it has fewer.
std::size_t ByteOffset(std::string_view text, std::int64_t index);

enum class Side { kLeft, kRight, kBoth };
// chars: the characters to take off; none: white space.
std::string_view StripText(std::string_view text, Side side = Side::kBoth,
                           std::optional<std::string_view> chars = std::nullopt);

// The caller of the searches has paid for one pass over `text`; they pay for more than that. From
// kRight they search from the end.
// Returns the byte at which `part` begins, or npos.
std::size_t FindPart(WorkBudget& budget, std::string_view text, std::string_view part,
                     Side from = Side::kLeft);
// limit: at most that many cuts; negative: no limit.
std::vector<std::string_view> SplitAt(WorkBudget& budget, std::string_view text,
                                      std::string_view separator, std::int64_t limit = -1,
                                      Side from = Side::kLeft);
std::vector<std::string_view> SplitAtSpace(WorkBudget& budget, std::string_view text,
                                           std::int64_t limit, Side from);
std::vector<std::string_view> SplitLines(WorkBudget& budget, std::string_view text,
                                         bool keep_ends = false);

// \x1f, \u00e9: the digits of an escape sequence are hexadecimal.
void AppendEscape(char letter, char32_t c, int digits, std::string& out);

// The upper case, or the form at the start of a word. Simple mapping, but for the German sharp s,
// which has an upper case of two letters.
void AppendCapital(char32_t c, bool is_title, std::string& out);
// A character of str.capitalize(): the first one as at the start of a word, the others small.
void AppendCapitalized(char32_t c, bool is_first, std::string& out);
std::string Capitalized(std::string_view text);
// The work of one byte whose case is changed: a look-up in the tables of Unicode.
inline constexpr std::size_t kCaseWork = 4;

// Each word with a capital letter; ends_word tells behind which characters a word begins.
std::string TitleCase(WorkBudget& budget, std::string_view text, bool (*ends_word)(char32_t),
                      bool is_title);

// str.islower, str.isupper: a letter has this case (kLower, kUpperOrTitle), and none another case.
bool HasCase(std::string_view text, unsigned char_class);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_PYTHON_STR_H_
