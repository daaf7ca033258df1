// The one exception type of the library. It never prints and never aborts.
#ifndef QLORA_ERROR_H_
#define QLORA_ERROR_H_

#include <stdexcept>
#include <string>

namespace qlora {

// The kind of a failure; the value is the exit code of the `qlora` program.
enum class ErrorCode {
  kRuntime = 1,       // failed while running: disk full, I/O error, interrupted file
  kInvalidInput = 2,  // the command, configuration, file or data is wrong; nothing was changed
  kOutOfMemory = 3,   // the plan does not fit in the memory that is allowed or free
};

// The message names the failure, its place (file, tensor, line), the expected and the found value,
// and a remedy.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message)
      : std::runtime_error(WithoutZeros(message)), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  // what() ends at a zero byte, which a name from a file may hold.
  static std::string WithoutZeros(const std::string& message) {
    std::string text;
    for (const char c : message) {
      if (c == '\0') {
        text += "\\x00";
      } else {
        text += c;
      }
    }
    return text;
  }

  ErrorCode code_;
};

}  // namespace qlora

#endif  // QLORA_ERROR_H_
