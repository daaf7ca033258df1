#include "progress.h"

#include "interrupt.h"

namespace qlora {

bool RunWithProgress(const Console& console, std::string_view what,
                     const std::function<void(const ProgressFn&)>& job) {
  const InterruptGuard guard;
  StatusLine line(console.err, console.style);
  job([&](std::int64_t done, std::int64_t total) {
    guard.ThrowIfRequested();
    ShowProgress(line, what, done, total);
  });
  return guard.requested();
}

}  // namespace qlora
