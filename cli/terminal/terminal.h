// The status line of a terminal during long work, and the text form of quantities.
#ifndef QLORA_CLI_TERMINAL_TERMINAL_H_
#define QLORA_CLI_TERMINAL_TERMINAL_H_

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "base/printable.h"

namespace qlora {

struct TerminalStyle {
  bool live = false;   // a line can be redrawn in place
  bool color = false;  // escape sequences for colours are understood and wanted
  int columns = 80;
};

// Returns the style of a file descriptor. A terminal is live unless TERM is "dumb" or unset; it has
// colours unless NO_COLOR is set to something (https://no-color.org).
TerminalStyle StyleOf(int descriptor);

std::string FormatDuration(double seconds);     // "8.3 s", "4:05", "1:02:03"
std::string Bar(double share, int characters);  // "[====>     ]"

// Returns `text` in the colour of an ANSI code ("31": red), or as it is.
std::string Colored(const TerminalStyle& style, std::string_view ansi, std::string_view text);

// The line at the bottom of a terminal that shows how far the work is. Where lines cannot be
// redrawn, only Print shows something.
class StatusLine {
 public:
  StatusLine(std::ostream& out, TerminalStyle style) : out_(out), style_(style) {}
  ~StatusLine() { Clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  const TerminalStyle& style() const { return style_; }
  // True when a new text would be shown: at most ten a second are.
  bool Due() const;
  // Replaces the line, cut to the width of the terminal.
  void Show(std::string_view text);
  // Writes a lasting line above it, or several where it is too long for the terminal.
  void Print(std::string_view text);
  void Clear();

 private:
  std::ostream& out_;
  TerminalStyle style_;
  bool visible_ = false;
  std::chrono::steady_clock::time_point shown_;
};

// Shows `done` of `total`, for the progress callbacks of the library.
void ShowProgress(StatusLine& line, std::string_view what, std::int64_t done, std::int64_t total);
// Shows how many bytes of the data are read.
void ShowReading(StatusLine& line, std::int64_t done, std::int64_t total);

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_TERMINAL_H_
