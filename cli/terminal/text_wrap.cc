#include "terminal/text_wrap.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace qlora {

std::int64_t TextColumns(const TerminalStyle& style) {
  // 60 columns hold the words; the eye follows at most 110. Files have the usual 80.
  return style.live ? std::clamp<std::int64_t>(style.columns, 60, 110) : 80;
}

// Each round takes the spaces before a word, and the word. The spaces are printed, or become a line
// break:
//
//     "raise max_length,  or cut"  ->  "raise" | " max_length," | "  or" | " cut"
std::string Wrap(std::string_view text, std::int64_t columns, std::int64_t indent,
                 std::int64_t first) {
  std::string out;
  std::int64_t column = first;
  while (!text.empty()) {
    const std::string_view::size_type begin = std::min(text.find_first_not_of(' '), text.size());
    const std::string_view::size_type end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const auto spaces = static_cast<std::int64_t>(begin);
    // A word that is longer than a line has a line to itself and is never broken: paths and
    // commands are copied.
    if (column + spaces + CountCharacters(word) > columns && column > indent) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else {
      out.append(begin, ' ');
      column += spaces;
    }
    out += word;
    column += CountCharacters(word);
    text.remove_prefix(end);
  }
  return out;
}

std::string WrapLines(std::string_view text, std::int64_t columns) {
  std::string out;
  for (;;) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (CountCharacters(line) <= columns) {
      out += line;
    } else {
      const std::string_view::size_type margin = line.find_first_not_of(' ');
      out += Wrap(line, columns, static_cast<std::int64_t>(std::min(margin, line.size())) + 2);
    }
    if (line.size() == text.size()) return out;
    out += '\n';
    text.remove_prefix(line.size() + 1);
  }
}

std::string WrapCommand(std::string_view command, std::int64_t columns, std::int64_t indent) {
  std::string out(indent, ' ');
  std::int64_t column = indent;
  while (!command.empty()) {
    const std::string_view part = command.substr(0, command.find(" --", 1));
    const std::int64_t backslash = part.size() == command.size() ? 0 : 2;
    if (column > indent && column + CountCharacters(part) + backslash > columns) {
      // The backslash continues the command in a shell.
      out += " \\\n" + std::string(indent + 3, ' ');
      column = indent + 3;
    }
    out += part;
    column += CountCharacters(part);
    command.remove_prefix(part.size());
  }
  return out;
}

std::string Shortened(std::string_view message) {
  constexpr std::size_t kMost = 16384;
  constexpr std::size_t kBegin = 4096;
  constexpr std::size_t kEnd = 1024;
  if (message.size() <= kMost) return std::string(message);
  const std::string_view begin = FirstBytes(message, kBegin);
  std::string_view end = message.substr(message.size() - kEnd);
  while (!end.empty() && ContinuesCharacter(end[0])) end.remove_prefix(1);
  return fmt::format("{} ... ({} bytes are not shown) ... {}", begin,
                     message.size() - begin.size() - end.size(), end);
}

std::string Fitted(const TerminalStyle& style, std::string_view text) {
  return style.live ? WrapLines(text, TextColumns(style)) : std::string(text);
}

}  // namespace qlora
