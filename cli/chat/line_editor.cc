// Lines that are edited in the terminal, by libedit.
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string_view>

#include "chat/line_reader.h"

namespace qlora {
namespace {

// libedit reads characters in the encoding of the locale, and tokenizers read UTF-8.
void UseUtf8() {
  const bool known = std::setlocale(LC_CTYPE, "") != nullptr;
  if (!known || std::string_view(nl_langinfo(CODESET)) != "UTF-8") {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

class LineEditor : public LineReader {
 public:
  explicit LineEditor(const InterruptGuard& guard) : guard_(guard) {
    UseUtf8();
    // Prompts and editing on standard error: standard output has the answers alone.
    edit_.reset(el_init("qlora", stdin, stderr, stderr));
    history_.reset(history_init());
    if (!usable()) return;
    HistEvent event;
    // The history of this session; nothing is written to disk, as messages may be private.
    history(history_.get(), &event, H_SETSIZE, 1000);
    el_set(edit_.get(), EL_CLIENTDATA, this);
    el_set(edit_.get(), EL_PROMPT, &LineEditor::Prompt);
    el_set(edit_.get(), EL_GETCFN, &LineEditor::ReadKey);
    el_set(edit_.get(), EL_EDITOR, "emacs");
    el_set(edit_.get(), EL_HIST, history, history_.get());
    // Alt+X would read a command of libedit, whose parser fails on an open quote.
    el_set(edit_.get(), EL_BIND, "\\ex", "ed-unassigned", nullptr);
    el_set(edit_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
    // While a line is edited, Ctrl+C is a key: a signal could come just before the read that it is
    // to end. libedit takes over the keys of the terminal when it first edits, and then this
    // change.
    el_set(edit_.get(), EL_PREP_TERM, 1);
    el_set(edit_.get(), EL_SETTY, "-d", "intr=", nullptr);
    el_set(edit_.get(), EL_PREP_TERM, 0);
    el_set(edit_.get(), EL_ADDFN, "drop-line", "Drop the line", &LineEditor::Drop);
    el_set(edit_.get(), EL_BIND, "^C", "drop-line", nullptr);
    // Ctrl with the right and the left arrow, as most terminals send them.
    el_set(edit_.get(), EL_BIND, "\\e[1;5C", "em-next-word", nullptr);
    el_set(edit_.get(), EL_BIND, "\\e[1;5D", "ed-prev-word", nullptr);
  }

  bool usable() const { return edit_ != nullptr && history_ != nullptr; }
  bool person() const override { return true; }

  Result Read(const std::string& prompt, std::string& line) override {
    prompt_ = prompt;
    dropped_ = false;
    el_set(edit_.get(), EL_PREP_TERM, 1);  // keys are keys once the prompt is shown
    int length = 0;
    errno = 0;
    const char* typed = el_gets(edit_.get(), &length);
    if (typed == nullptr) {
      // libedit says -1 and EINTR for the value that ReadKey returned; 0 for the end of input.
      const bool signal = length < 0 && errno == EINTR;
      std::fputs("\n", stderr);
      if (dropped_) return Result::kDropped;
      return signal ? Result::kSignal : Result::kEnd;
    }
    line = typed;
    if (line.ends_with('\n')) line.pop_back();
    HistEvent event;
    if (!line.empty()) history(history_.get(), &event, H_ENTER, line.c_str());
    return Result::kLine;
  }

 private:
  struct EndEdit {
    void operator()(EditLine* e) const { el_end(e); }
  };
  struct EndHistory {
    void operator()(History* h) const { history_end(h); }
  };

  static LineEditor& Of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }
  static char* Prompt(EditLine* edit) { return Of(edit).prompt_.data(); }
  static unsigned char Drop(EditLine* edit, int /*key*/) {
    Of(edit).dropped_ = true;
    return CC_EOF;
  }

  // Returns the number of characters, 0 at the end, -1 for an error or a signal.
  static int ReadKey(EditLine* edit, wchar_t* key) {
    constexpr auto kNotUtf8 = static_cast<std::size_t>(-1);  // of mbrtowc
    std::mbstate_t state = {};
    for (;;) {
      // libedit's own reading would miss a signal that comes just before.
      if (!Of(edit).guard_.WaitForInput(STDIN_FILENO)) {
        errno = EINTR;
        return -1;
      }
      char byte = 0;
      const ssize_t count = read(STDIN_FILENO, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return static_cast<int>(count);
      std::size_t bytes = std::mbrtowc(key, &byte, 1, &state);
      if (bytes == kNotUtf8) {  // the bytes before are dropped, and this byte begins a character
        state = {};
        bytes = std::mbrtowc(key, &byte, 1, &state);
      }
      // 1 is a whole character, 0 the zero character; -2 asks for more bytes.
      if (bytes <= 1) return 1;
      if (bytes == kNotUtf8) state = {};
    }
  }

  const InterruptGuard& guard_;
  std::string prompt_;
  bool dropped_ = false;  // Ctrl+C ended the line
  std::unique_ptr<History, EndHistory> history_;
  std::unique_ptr<EditLine, EndEdit> edit_;
};

}  // namespace

std::unique_ptr<LineReader> MakeLineEditor(const InterruptGuard& guard) {
  auto editor = std::make_unique<LineEditor>(guard);
  if (!editor->usable()) return nullptr;
  return editor;
}

}  // namespace qlora
