#include "terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/environment.h"
#include "base/printable.h"
#include "terminal/text_wrap.h"

namespace qlora {
namespace {}  // namespace

TerminalStyle StyleOf(int descriptor) {
  TerminalStyle style;
  // live: lines can be written over. Pipes, files, editors' shells (dumb) and services (no TERM)
  // get whole lines.
  const std::string term = Environment("TERM");
  style.live = isatty(descriptor) != 0 && !term.empty() && term != "dumb";
  // no-color.org: any value that is not empty switches colours off.
  style.color = style.live && Environment("NO_COLOR").empty();
  struct winsize size = {};
  // Some terminals (serial lines, containers) report 0 columns: the default stays.
  if (style.live && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.columns = size.ws_col;
  }
  return style;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  // 59.95 would be printed as "60.0 s".
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  const std::int64_t hours = whole / 3600;
  const std::int64_t minutes = whole / 60 % 60;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
}

std::string Bar(double share, int characters) {
  const double bounded = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  // Without the brackets.
  const int inside = std::max(characters - 2, 1);
  const int filled = static_cast<int>(bounded * inside);
  std::string bar(inside, ' ');
  std::fill_n(bar.begin(), filled, '=');
  if (filled < inside) bar[filled] = '>';
  return "[" + bar + "]";
}

std::string Colored(const TerminalStyle& style, std::string_view ansi, std::string_view text) {
  return style.color ? fmt::format("\033[{}m{}\033[0m", ansi, text) : std::string(text);
}

bool StatusLine::Due() const {
  // At most ten lines a second: otherwise fast steps would spend their time in the terminal.
  return style_.live &&
         (!visible_ || std::chrono::steady_clock::now() - shown_ > std::chrono::milliseconds(100));
}

void StatusLine::Show(std::string_view text) {
  if (!style_.live) return;
  const int width = std::max(style_.columns - 1, 1);
  // Back to the first column, the rest of the line erased. A line that wraps could not be erased.
  out_ << "\r\033[K" << text.substr(0, width) << std::flush;
  visible_ = true;
  shown_ = std::chrono::steady_clock::now();
}

void StatusLine::Print(std::string_view text) {
  Clear();
  // Printable: names and texts of files may hold escape sequences.
  out_ << Fitted(style_, Printable(text)) << std::endl;
}

void StatusLine::Clear() {
  if (visible_) out_ << "\r\033[K" << std::flush;
  visible_ = false;
}

void ShowProgress(StatusLine& line, std::string_view what, std::int64_t done, std::int64_t total) {
  // The end is always shown: a bar that stops at 97 % looks like a failure.
  if (total <= 0 || !(line.Due() || done == total)) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  line.Show(fmt::format("{} {} {:3.0f} %  {}/{}", what, Bar(share, 26), 100 * share, done, total));
}

void ShowReading(StatusLine& line, std::int64_t done, std::int64_t total) {
  if (total <= 0 || !(line.Due() || done == total)) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  line.Show(fmt::format("reading data {} {:3.0f} %  of {}", Bar(share, 26), 100 * share,
                        FormatBytes(static_cast<std::size_t>(total))));
}

}  // namespace qlora
