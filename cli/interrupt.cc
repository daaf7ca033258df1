#include "interrupt.h"

namespace qlora {
namespace {

// A signal handler can reach nothing but static storage.
volatile std::sig_atomic_t signal_seen = 0;

void Remember(int signal) { signal_seen = signal; }

}  // namespace

InterruptGuard::InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &old_[i]);
  Install();
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
}

int InterruptGuard::signal() const { return signal_seen; }

void InterruptGuard::Rearm() { Install(); }

void InterruptGuard::Install() {
  signal_seen = 0;
  struct sigaction action = {};
  action.sa_handler = Remember;
  // The handler is taken away as it runs, so that the next signal has its usual effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    const bool nohup = kSignals[i] == SIGHUP && old_[i].sa_handler == SIG_IGN;
    if (!nohup) sigaction(kSignals[i], &action, nullptr);
  }
}

}  // namespace qlora
