#include "terminal/progress.h"

#include "terminal/interrupt.h"

namespace qlora {

bool RunWithProgress(const Console& console, std::string_view what,
                     const std::function<void(const ProgressFn&)>& job) {
  const InterruptGuard guard;
  StatusLine line(console.err, console.style);
  job([&](std::int64_t done, std::int64_t total) {
    // Between two pieces of the job, which leaves nothing half done: files appear under their names
    // only when they are complete.
    guard.ThrowIfRequested();
    ShowProgress(line, what, done, total);
  });
  return guard.requested();
}

}  // namespace qlora
