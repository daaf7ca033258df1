#include "interrupt.h"

namespace qlora {
namespace {

// A signal handler can reach nothing but static storage.
volatile std::sig_atomic_t signal_seen = 0;

void Remember(int) { signal_seen = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  sigaction(SIGINT, nullptr, &old_interrupt_);
  sigaction(SIGTERM, nullptr, &old_terminate_);
  Install();
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool InterruptGuard::requested() const { return signal_seen != 0; }

void InterruptGuard::Rearm() { Install(); }

void InterruptGuard::Install() {
  signal_seen = 0;
  struct sigaction action = {};
  action.sa_handler = Remember;
  // The handler is taken away as it runs, so that the next signal has its usual effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace qlora
