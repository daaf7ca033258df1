#include "chat/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace qlora {
namespace {

// Reads with stdio, whose reads a signal ends.
class PlainReader : public LineReader {
 public:
  explicit PlainReader(const Console& console) : console_(console) {}

  bool person() const override { return person_; }

  Result Read(const std::string& prompt, std::string& line) override {
    if (person_) console_.err << prompt << std::flush;
    line.clear();
    for (;;) {
      const int c = std::getc(stdin);
      if (c == '\n') return Result::kLine;
      if (c == EOF) break;
      line += static_cast<char>(c);
    }
    const bool signal = std::ferror(stdin) != 0 && errno == EINTR;
    std::clearerr(stdin);
    if (!signal && !line.empty()) return Result::kLine;
    if (person_) console_.err << std::endl;
    return signal ? Result::kSignal : Result::kEnd;
  }

 private:
  const Console& console_;
  bool person_ = isatty(STDIN_FILENO) != 0;
};

}  // namespace

std::unique_ptr<LineReader> MakeLineReader(const Console& console) {
  // console.style.live: the lines would be edited in the terminal of standard error.
  const bool edits = isatty(STDIN_FILENO) != 0 && console.style.live;
  std::unique_ptr<LineReader> editor = edits ? MakeLineEditor() : nullptr;
  if (editor != nullptr) return editor;
  return std::make_unique<PlainReader>(console);
}

}  // namespace qlora
