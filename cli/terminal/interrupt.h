// Ctrl+C, SIGTERM, SIGUSR1 and a closed terminal (SIGHUP) as a question that work in progress can
// ask.
#ifndef QLORA_CLI_TERMINAL_INTERRUPT_H_
#define QLORA_CLI_TERMINAL_INTERRUPT_H_

#include <array>
#include <csignal>
#include <string>

namespace qlora {

inline constexpr int kInterruptedExit = 130;

// Thrown where there is nothing to save.
struct Interrupted {
  std::string state;  // the files now, and advice; "": no files were changed
};

// While it lives, the first of these signals sets a flag. A second SIGINT, for which a person presses
// Ctrl+C again, ends the process at once; further signals of the other kinds, which managers of jobs
// send again, change nothing: what the first one asked for goes on. A SIGHUP that `nohup` ignores
// stays ignored. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Returns the signal that came, or 0.
  int signal() const;
  bool requested() const { return signal() != 0; }
  void ThrowIfRequested() const {
    if (requested()) throw Interrupted();
  }
  // Waits until a read from `input` would not block, or a signal has come: also one that came
  // before the call, which the read alone would not notice. Returns false for a signal.
  bool WaitForInput(int input) const;
  // Forgets the signal and waits for the next.
  void Rearm();
  // Answers Ctrl+C at once with this text on standard error, where work goes on for a while. The
  // text must outlive this.
  void AnswerWith(const char* text);

 private:
  void Install();

  // mpirun hands on SIGUSR1, and ends its ranks a second after the others.
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

  struct sigaction old_[kSignals.size()] = {};
};

}  // namespace qlora

#endif  // QLORA_CLI_TERMINAL_INTERRUPT_H_
