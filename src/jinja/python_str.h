// What Python's str does, over valid UTF-8.
#ifndef QLORA_JINJA_PYTHON_STR_H_
#define QLORA_JINJA_PYTHON_STR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qlora::jinja {

bool IsPythonSpace(char32_t c);  // str.isspace
std::int64_t CountCharacters(std::string_view text);
// Byte offset of character `index` (not negative), or the size of the text when it has fewer.
std::size_t ByteOffset(std::string_view text, std::int64_t index);

enum class Side { kLeft, kRight, kBoth };
// chars: what is taken off; none: white space.
std::string_view Strip(std::string_view text, Side side = Side::kBoth,
                       std::optional<std::string_view> chars = std::nullopt);

// limit: at most that many cuts; negative: no limit.
std::vector<std::string_view> SplitAtSpace(std::string_view text, std::int64_t limit);
std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, std::int64_t limit);
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      std::int64_t limit);
std::vector<std::string_view> SplitAtFromRight(std::string_view text, std::string_view separator,
                                               std::int64_t limit);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// limit: at most that many; negative: no limit.
std::string Replace(std::string_view text, std::string_view old, std::string_view by,
                    std::int64_t limit);

// Simple case mapping, but for the German sharp s, which has an upper case of two letters.
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleCase(std::string_view text);          // str.title
std::string TitleAtSeparators(std::string_view text);  // Jinja's filter title
bool IsUpper(std::string_view text);
bool IsLower(std::string_view text);

std::string Repr(std::string_view text);
std::string FloatRepr(double value);
// With the quotes. ascii: other characters as \uXXXX.
void AppendJsonText(std::string_view text, bool ascii, std::string& out);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_PYTHON_STR_H_
