// How a program of this project ends: what it prints of a failure, and its exit code.
#ifndef QLORA_CLI_COMMAND_ERRORS_H_
#define QLORA_CLI_COMMAND_ERRORS_H_

#include <string>
#include <vector>

#include "command/verb.h"
#include "qlora/error.h"

namespace qlora {

// An error that the verb has printed as a JSON object already.
class ReportedError : public Error {
 public:
  using Error::Error;
};

// True for arguments that ask for JSON. Read apart from other options, because errors of the parser
// itself are printed as JSON too.
bool AsksForJson(const std::vector<std::string>& arguments);

// Prints a failure on standard error, whose last line gives the advice, if any, and with `json`
// also as an object on standard output.
void PrintFailure(const Console& console, int code, const std::string& message,
                  const std::string& advice, bool json);

// Flushes standard output, and returns the exit code of a command that succeeded with `code`:
// another one where the reader of a pipe is gone, as in `qlora ... | head -1`. Errors: Runtime
// where the output could not be written, as on a full disk.
int FlushOutput(const Console& console, int code);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_ERRORS_H_
