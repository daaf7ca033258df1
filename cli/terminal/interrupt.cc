#include "terminal/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace qlora {
namespace {

// A signal handler can reach nothing but static storage.
volatile std::sig_atomic_t signal_seen = 0;
volatile std::sig_atomic_t signal_event = -1;  // an eventfd, which can be read once a signal came
const char* volatile answer = nullptr;         // to SIGINT

void Remember(int signal) {
  // The handler may run between a system call and the look at its errno.
  const int error = errno;
  signal_seen = signal;
  const char* const text = answer;
  if (signal == SIGINT && text != nullptr) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
  }
  // Wakes poll(): a flag alone would be seen only after the next line of input.
  eventfd_write(signal_event, 1);
  errno = error;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  signal_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &old_[i]);
  Install();
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  answer = nullptr;
  close(signal_event);
  signal_event = -1;
}

void InterruptGuard::AnswerWith(const char* text) { answer = text; }

int InterruptGuard::signal() const { return signal_seen; }

bool InterruptGuard::WaitForInput(int input) const {
  // Waits for both: a signal between the check of the flag and poll() would be lost without the
  // event.
  pollfd files[] = {{input, POLLIN, 0}, {signal_event, POLLIN, 0}};
  while (!requested() && poll(files, 2, -1) < 0 && errno == EINTR) {
  }
  return !requested();
}

// A signal that arrives between the two steps is in signal_seen, which WaitForInput asks first.
void InterruptGuard::Rearm() {
  Install();
  eventfd_t ignored = 0;
  eventfd_read(signal_event, &ignored);
}

void InterruptGuard::Install() {
  signal_seen = 0;
  struct sigaction action = {};
  action.sa_handler = Remember;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    // nohup lets the program continue when the terminal closes: SIGHUP then stays ignored.
    const bool nohup = kSignals[i] == SIGHUP && old_[i].sa_handler == SIG_IGN;
    // The handler is taken away as it runs, so that the next signal has its usual effect.
    action.sa_flags = kSignals[i] == SIGINT ? static_cast<int>(SA_RESETHAND) : 0;
    if (!nohup) sigaction(kSignals[i], &action, nullptr);
  }
}

}  // namespace qlora
