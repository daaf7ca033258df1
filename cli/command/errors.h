// Errors of the command line itself.
#ifndef QLORA_CLI_COMMAND_ERRORS_H_
#define QLORA_CLI_COMMAND_ERRORS_H_

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "qlora/error.h"

namespace qlora {

// Reports a wrong command or configuration: exit code 2.
template <typename... Args>
[[noreturn]] void ThrowUsage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidInput, fmt::format(format, std::forward<Args>(args)...));
}

// An error that the verb has printed as a JSON object already.
class ReportedError : public Error {
 public:
  using Error::Error;
};

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_ERRORS_H_
