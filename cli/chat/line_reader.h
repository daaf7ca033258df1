// Reads lines from standard input.
#ifndef QLORA_CLI_CHAT_LINE_READER_H_
#define QLORA_CLI_CHAT_LINE_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "command/verb.h"
#include "terminal/interrupt.h"

namespace qlora {

class LineReader {
 public:
  enum class Result : std::uint8_t {
    kLine,
    kEnd,
    kDropped,  // a person pressed Ctrl+C
    kSignal,   // the guard has seen a signal; the typed text is dropped
  };

  virtual ~LineReader() = default;
  // True when a person types at a terminal.
  virtual bool person() const = 0;
  // Reads a line without its line feed. prompt: shown to a person.
  virtual Result Read(const std::string& prompt, std::string& line) = 0;
};

// Lines that are edited, with the history of the session: from a terminal, in a build with libedit.
// Otherwise lines as they come. The guard ends a read and must outlive the reader.
std::unique_ptr<LineReader> MakeLineReader(const Console& console, const InterruptGuard& guard);

// The reader with editing; nullptr in a build without libedit (line_editor.cc,
// line_editor_absent.cc). Standard input and standard error are a terminal.
std::unique_ptr<LineReader> MakeLineEditor(const InterruptGuard& guard);

}  // namespace qlora

#endif  // QLORA_CLI_CHAT_LINE_READER_H_
