// The program in a terminal, with a person who types.
#ifndef QLORA_TESTS_CLI_PSEUDO_TERMINAL_H_
#define QLORA_TESTS_CLI_PSEUDO_TERMINAL_H_

#include <poll.h>
#include <pty.h>

#include <chrono>
#include <csignal>

#include "cli/test_util.h"

namespace qlora {

class PseudoTerminal {
 public:
  // Runs `qlora` with these arguments in `folder`, in a terminal of so many columns.
  PseudoTerminal(const fs::path& folder, const std::vector<std::string>& arguments,
                 unsigned short columns = 80) {
    CommandWords command(QloraBinary(), arguments);
    const winsize size = {24, columns, 0, 0};
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ != 0) return;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    // libedit never frees the names of functions that it was given (EL_ADDFN).
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
    std::signal(SIGINT, SIG_DFL);  // a test in the background of a shell ignores the signal
    if (chdir(folder.c_str()) == 0) command.Start();
    _exit(127);
  }
  ~PseudoTerminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(terminal_);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  // Waits until `text` is shown after everything that was waited for before. Returns what was shown
  // up to it; the test fails when it does not come.
  std::string WaitFor(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(600);
    while (shown_.find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end || !Read()) {
        ADD_FAILURE() << "'" << text << "' is not shown, but: " << shown_;
        return {};
      }
    }
    const std::size_t at = shown_.find(text) + text.size();
    std::string before = shown_.substr(0, at);
    shown_.erase(0, at);
    return before;
  }
  // Waits until anything is shown after what was waited for before.
  void WaitForMore() {
    while (shown_.empty() && Read()) {
    }
    EXPECT_NE(shown_, "");
  }
  void Type(const std::string& keys) const {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), std::ssize(keys));
  }

  // Ends the program by a signal, sent again and again, because one may come before the read that
  // it is to end. A program that has ended keeps its id until End waits for it. Returns as End.
  int EndBy(int signal) {
    const auto has_ended = [&] {
      siginfo_t state = {};
      waitid(P_PID, static_cast<id_t>(child_), &state, WEXITED | WNOHANG | WNOWAIT);
      return state.si_pid == child_;
    };
    pollfd ready = {terminal_, POLLIN, 0};
    while (!has_ended()) {
      kill(child_, signal);
      if (poll(&ready, 1, 100) > 0) Read();
    }
    return End();
  }

  // The exit code, once the program has ended; 128 + signal when a signal ended it. `rest` is what
  // was shown until then.
  int End(std::string* rest = nullptr) {
    while (Read()) {
    }
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    if (rest != nullptr) *rest = shown_;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  // Returns false at the end of the output, and after ten minutes without any.
  bool Read() {
    pollfd ready = {terminal_, POLLIN, 0};
    if (poll(&ready, 1, 600000) <= 0) return false;
    char buffer[4096];
    const ssize_t size = read(terminal_, buffer, sizeof(buffer));
    if (size > 0) shown_.append(buffer, size);
    return size > 0;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_CLI_PSEUDO_TERMINAL_H_
