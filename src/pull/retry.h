// Tries requests again after faults that may pass: broken connections, busy servers, rate limits.
#ifndef QLORA_PULL_RETRY_H_
#define QLORA_PULL_RETRY_H_

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "pull/http.h"

namespace qlora {

struct RetryOptions {
  double first_wait_seconds = 1;  // then twice as long each time, 8 times as long at most
  int tries = 5;                  // without progress in between
  std::function<void()> check;    // called while waiting; throws to end it
  std::function<void(const std::string&)> note;  // "HOST: timeout; again in 2 s"
};

inline void WaitSeconds(double seconds, const std::function<void()>& check) {
  using SteadyClock = std::chrono::steady_clock;
  const auto end = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(
                                            std::chrono::duration<double>(seconds));
  while (SteadyClock::now() < end) {
    check();
    std::this_thread::sleep_for(
        std::min<SteadyClock::duration>(std::chrono::milliseconds(100), end - SteadyClock::now()));
  }
}

// Returns attempt(). Where that throws PassingError, tries again; progress() says that the last
// attempt got further than all before, which starts the count of tries again. Errors: the last
// PassingError, and every other error at once.
template <typename Attempt, typename Progress>
auto WithRetries(const RetryOptions& options, const Attempt& attempt, const Progress& progress) {
  double wait = options.first_wait_seconds;
  for (int tries = 1;; ++tries) {
    try {
      return attempt();
    } catch (const PassingError& error) {
      if (progress()) {
        tries = 1;
        wait = options.first_wait_seconds;
      }
      if (tries == options.tries) throw;
      const double seconds = error.wait_seconds() > 0 ? error.wait_seconds() : wait;
      options.note(fmt::format("{}; trying again in {:.0f} s", error.what(), seconds));
      WaitSeconds(seconds, options.check);
    }
    wait = std::min(2 * wait, 8 * options.first_wait_seconds);
  }
}

template <typename Attempt>
auto WithRetries(const RetryOptions& options, const Attempt& attempt) {
  return WithRetries(options, attempt, [] { return false; });
}

}  // namespace qlora

#endif  // QLORA_PULL_RETRY_H_
