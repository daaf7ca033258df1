#include "terminal/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/system.h"

namespace qlora {
namespace {

// A signal handler can reach nothing but static storage.
volatile std::sig_atomic_t signal_seen = 0;
volatile std::sig_atomic_t wake_reader = -1;  // a pipe, which can be read once a signal came
volatile std::sig_atomic_t wake_writer = -1;
const char* volatile answer = nullptr;  // to SIGINT

void Remember(int signal) {
  // The handler may run between a system call and the look at its errno.
  const int error = errno;
  signal_seen = signal;
  const char* const text = answer;
  [[maybe_unused]] ssize_t written = 0;
  if (signal == SIGINT && text != nullptr) {
    written = write(STDERR_FILENO, text, std::strlen(text));
  }
  // Wakes poll(): a flag alone would be seen only after the next line of input. A full pipe wakes
  // it, too.
  written = write(wake_writer, "", 1);
  errno = error;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  int ends[2] = {-1, -1};
  if (OpenPipe(ends)) {
    for (const int end : ends) fcntl(end, F_SETFL, O_NONBLOCK);
  }
  wake_reader = ends[0];
  wake_writer = ends[1];
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &old_[i]);
  Install();
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  answer = nullptr;
  close(wake_reader);
  close(wake_writer);
  wake_reader = -1;
  wake_writer = -1;
}

void InterruptGuard::AnswerWith(const char* text) { answer = text; }

int InterruptGuard::signal() const { return signal_seen; }

bool InterruptGuard::WaitForInput(int input) const {
  // Waits for both: a signal between the check of the flag and poll() would be lost without the
  // pipe.
  pollfd files[] = {{input, POLLIN, 0}, {wake_reader, POLLIN, 0}};
  while (!requested() && poll(files, 2, -1) < 0 && errno == EINTR) {
  }
  return !requested();
}

// A signal that arrives between the two steps is in signal_seen, which WaitForInput asks first.
void InterruptGuard::Rearm() {
  Install();
  char ignored[16];
  while (read(wake_reader, ignored, sizeof(ignored)) > 0) {
  }
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
