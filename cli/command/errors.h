// Errors of the command line itself.
#ifndef QLORA_CLI_COMMAND_ERRORS_H_
#define QLORA_CLI_COMMAND_ERRORS_H_

#include "qlora/error.h"

namespace qlora {

// An error that the verb has printed as a JSON object already.
class ReportedError : public Error {
 public:
  using Error::Error;
};

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_ERRORS_H_
