// Helpers that several verbs share: common options, messages, JSON, input and output files.
#ifndef QLORA_CLI_COMMAND_COMMON_H_
#define QLORA_CLI_COMMAND_COMMON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "command/verb.h"
#include "io/json_fwd.h"
#include "qlora/error.h"
#include "qlora/options.h"

namespace qlora {

// The options that end every verb's help.
struct RunFields {
  std::int64_t threads = 0;
  bool json = false;

  // Declares the section "Run": threads and json.
  void Declare(OptionTable& table);
  void DeclareThreads(OptionTable& table);
  void DeclareJson(OptionTable& table);
  // Returns the threads of a Context: `threads`, or OMP_NUM_THREADS, or 0 (one per usable core).
  // Errors: InvalidInput for a negative or absurd number.
  int ThreadCount() const;
};

int ThreadCount(std::int64_t threads);

// Writes a message on console.err: wrapped in a terminal, and without control characters.
void Say(const Console& console, std::string_view text);

// Returns text that a model wrote as console.out shows it: without control characters in a
// terminal.
std::string Shown(const Console& console, std::string_view text);

// Prints one JSON object on one line. Bytes that are not UTF-8 become U+FFFD.
void PrintJson(std::ostream& out, const OrderedJson& object);
// Prints the result of a verb, behind "ok": true.
void PrintSuccess(const Console& console, const OrderedJson& result);
// Prints the object of a failure, which holds the result so far as well. main prints the text of
// the error that is thrown, and no second object.
[[noreturn]] void ThrowWithJson(const Console& console, const Error& error,
                                const OrderedJson& result);

// Returns the object that --json prints for a command that failed.
OrderedJson FailureToJson(int exit_code, std::string_view message);

// Returns the JSON as text; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const OrderedJson& value);

// Reads a whole file, or standard input for "-". Errors: InvalidInput.
std::string ReadInput(const std::string& path);

// A file for the result of a verb, or standard output.
struct OutputFile {
  std::string path;  // "": standard output
  bool overwrite = false;

  void Declare(OptionTable& table, std::string name, std::string alias);
  // Errors: InvalidInput when the file exists and may not be replaced.
  void Check() const;
  // Writes the file, which appears whole or not at all. Errors: as Check; Runtime.
  void Write(const Console& console, std::string_view text) const;
};

// Returns the text in single quotes for a shell, which knows no escapes inside them.
std::string SingleQuoted(std::string_view text);
// Returns `text` as one word of a shell command, quoted where it must be.
std::string ShellQuote(const std::string& text);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_COMMON_H_
