// Breaks text into lines that fit a terminal.
#ifndef QLORA_CLI_TERMINAL_TEXT_WRAP_H_
#define QLORA_CLI_TERMINAL_TEXT_WRAP_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "terminal/terminal.h"

namespace qlora {

// Returns the width of help texts and messages: the width of the terminal, at least 60 and at most
// 110 columns; 80 columns where the output is not a terminal.
std::int64_t TextColumns(const TerminalStyle& style);

// Wraps one paragraph in lines of at most `columns` characters; a longer word stays whole. The
// first line starts at column `first`, the others at `indent`.
std::string Wrap(std::string_view text, std::int64_t columns, std::int64_t indent = 0,
                 std::int64_t first = 0);

// Returns a text whose lines are kept where they fit. The rest of a longer line is indented by two
// columns more than the line.
std::string WrapLines(std::string_view text, std::int64_t columns);

// Returns a command as a shell takes it: a line that is too long ends with a backslash before an
// option.
std::string WrapCommand(std::string_view command, std::int64_t columns, std::int64_t indent);

// Returns a message without the middle of a text, a name or a number in it that takes pages: files
// may hold some of any length.
std::string Shortened(std::string_view message);

// Wraps `text` to the width of a terminal. Files and pipes get `text` unchanged, for grep.
std::string Fitted(const TerminalStyle& style, std::string_view text);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_TEXT_WRAP_H_
