// What several verbs need.
#ifndef QLORA_CLI_COMMON_H_
#define QLORA_CLI_COMMON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "qlora/options.h"
#include "verb.h"

namespace qlora {

// The options that end every verb's help.
struct RunFields {
  std::int64_t threads = 0;
  bool json = false;

  void DeclareThreads(OptionTable& table);
  void DeclareJson(OptionTable& table);
  // For a Context: `threads`, else OMP_NUM_THREADS, else 0 (one per usable core).
  // Errors: InvalidInput for a negative or absurd number.
  int ThreadCount() const;
};

int ThreadCount(std::int64_t threads);

// One JSON object on one line. Text that is not UTF-8 is replaced by U+FFFD.
void PrintJson(std::ostream& out, const OrderedJson& object);

// As text; what is not UTF-8 becomes U+FFFD.
std::string Dump(const OrderedJson& value);

// A whole file, or standard input for "-". Errors: InvalidInput.
std::string ReadInput(const std::string& path);

// `text` to a file, which appears whole or not at all, or to the console when `path` is "".
// Errors: Runtime.
void WriteOutput(const Console& console, const std::string& path, std::string_view text);

// `text` as one word of a shell command.
std::string ShellQuote(const std::string& text);

}  // namespace qlora

#endif  // QLORA_CLI_COMMON_H_
