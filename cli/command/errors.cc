#include "command/errors.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/printable.h"
#include "command/common.h"
#include "io/json.h"
#include "terminal/text_wrap.h"

namespace qlora {
namespace {

// True when standard output is a pipe that nobody reads any more.
bool ReaderIsGone() {
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

}  // namespace

bool AsksForJson(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--json=true" || word == "json=true") return true;
    if (word == "--json") {
      return i + 1 == arguments.size() || ParseBool(arguments[i + 1]).value_or(true);
    }
  }
  return false;
}

void PrintFailure(const Console& console, int code, const std::string& whole,
                  const std::string& advice, bool json) {
  const std::string message = Shortened(whole);
  constexpr std::string_view kError = "error:";
  const std::string text = Fitted(console.style, fmt::format("{} {}", kError, Printable(message)));
  console.err << Colored(console.style, "1;31", kError) << text.substr(kError.size()) << '\n';
  if (!advice.empty()) Say(console, advice);
  if (json) PrintJson(console.out, FailureToJson(code, message));
}

int FlushOutput(const Console& console, int code) {
  console.out.flush();
  if (console.out) return code;
  // As shells report other programs.
  if (ReaderIsGone()) return 128 + SIGPIPE;
  // The reason may have been overwritten since, so the rest of the output is flushed once more.
  console.out.clear();
  errno = 0;
  console.out.flush();
  const int error = errno;
  constexpr std::string_view kFault = "standard output cannot be written";
  throw Error(ErrorCode::kRuntime, error == 0
                                       ? std::string(kFault)
                                       : fmt::format("{}: {}", kFault, std::strerror(error)));
}

}  // namespace qlora
