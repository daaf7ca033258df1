#include "chat/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 26;

class PlainReader : public LineReader {
 public:
  PlainReader(const Console& console, const InterruptGuard& guard)
      : console_(console), guard_(guard) {}

  bool person() const override { return person_; }

  Result Read(const std::string& prompt, std::string& line) override {
    if (person_) console_.err << prompt << std::flush;
    for (;;) {
      if (const std::size_t end = pending_.find('\n', searched_); end != std::string::npos) {
        // The rest stays for the next call: a pipe delivers many lines at once.
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        searched_ = 0;
        return Result::kLine;
      }
      searched_ = pending_.size();
      if (searched_ > kMaxLineBytes) {
        ThrowInvalidInput("standard input: a line of more than {} bytes is no message",
                          kMaxLineBytes);
      }
      // read() alone would be restarted, or miss a signal that came just before.
      if (!guard_.WaitForInput(STDIN_FILENO)) return End(Result::kSignal);
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count > 0) {
        pending_.append(bytes, count);
        continue;
      }
      // The last line of a file may lack its line feed.
      line = std::exchange(pending_, "");
      searched_ = 0;
      return line.empty() ? End(Result::kEnd) : Result::kLine;
    }
  }

 private:
  Result End(Result result) {
    pending_.clear();
    searched_ = 0;
    if (person_) console_.err << std::endl;
    return result;
  }

  const Console& console_;
  const InterruptGuard& guard_;
  std::string pending_;       // bytes that were read and not yet returned
  std::size_t searched_ = 0;  // of them, without a line feed
  bool person_ = isatty(STDIN_FILENO) != 0;
};

}  // namespace

std::unique_ptr<LineReader> MakeLineReader(const Console& console, const InterruptGuard& guard) {
  // console.style.live: the lines would be edited in the terminal of standard error.
  const bool edits = isatty(STDIN_FILENO) != 0 && console.style.live;
  std::unique_ptr<LineReader> editor = edits ? MakeLineEditor(guard) : nullptr;
  if (editor != nullptr) return editor;
  return std::make_unique<PlainReader>(console, guard);
}

}  // namespace qlora
