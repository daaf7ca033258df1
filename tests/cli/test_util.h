// A scratch folder, and the program as a user runs it.
#ifndef QLORA_TESTS_CLI_TEST_UTIL_H_
#define QLORA_TESTS_CLI_TEST_UTIL_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "qlora/error.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

namespace fs = std::filesystem;

class ScratchTest : public ::testing::Test {
 protected:
  fs::path Write(const std::string& name, std::string_view text) const {
    return folder_.Write(name, text);
  }

  TemporaryFolder folder_;
  fs::path scratch_ = folder_.path();
};

inline std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What running the program came to.
struct Outcome {
  int code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;

  std::string LastErrorLine() const {
    std::string text = err;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const std::size_t start = text.rfind('\n');
    return start == std::string::npos ? text : text.substr(start + 1);
  }
};

// The words of a command as execvp takes them.
class CommandWords {
 public:
  explicit CommandWords(const std::string& program, const std::vector<std::string>& arguments)
      : words_{program} {
    words_.insert(words_.end(), arguments.begin(), arguments.end());
    for (std::string& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
  }
  // Returns only when the program cannot be started.
  void Start() { execvp(argv_[0], argv_.data()); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> argv_;
};

// Runs a program with these arguments in `folder`, with `input` as standard input. `meanwhile` is
// called with the process id once the program has been started.
inline Outcome RunProgram(const std::string& program, const fs::path& folder,
                          const std::vector<std::string>& arguments, std::string_view input = "",
                          const std::function<void(pid_t)>& meanwhile = {}) {
  const fs::path in = folder / ".stdin";
  const fs::path out = folder / ".stdout";
  const fs::path err = folder / ".stderr";
  std::ofstream(in, std::ios::binary) << input;
  CommandWords command(program, arguments);
  const pid_t child = fork();
  if (child == 0) {
    const auto redirect = [](const fs::path& path, int flags, int descriptor) {
      const int fd = open(path.c_str(), flags, 0600);
      if (fd < 0 || dup2(fd, descriptor) < 0) _exit(127);
    };
    redirect(in, O_RDONLY, STDIN_FILENO);
    redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    if (chdir(folder.c_str()) != 0) _exit(127);
    command.Start();
    _exit(127);
  }
  if (meanwhile) meanwhile(child);
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = ReadAll(out);
  outcome.err = ReadAll(err);
  for (const fs::path& path : {in, out, err}) fs::remove(path);
  return outcome;
}

// Runs `qlora`.
inline Outcome RunQlora(const fs::path& folder, const std::vector<std::string>& arguments,
                        std::string_view input = "",
                        const std::function<void(pid_t)>& meanwhile = {}) {
  return RunProgram(QloraBinary(), folder, arguments, input, meanwhile);
}

// Waits until `reached` says so. False when the program has ended before.
inline bool WaitUntil(pid_t program, const std::function<bool()>& reached) {
  while (!reached()) {
    siginfo_t state = {};
    waitid(P_PID, static_cast<id_t>(program), &state, WEXITED | WNOHANG | WNOWAIT);
    if (state.si_pid == program) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Lets a program run for moments until `reached` says so, and holds the program there; SIGCONT lets
// it go on. False when the program has ended before.
inline bool HoldWhen(pid_t program, const std::function<bool()>& reached) {
  while (true) {
    kill(program, SIGSTOP);
    siginfo_t state = {};
    waitid(P_PID, static_cast<id_t>(program), &state, WEXITED | WSTOPPED | WNOWAIT);
    if (state.si_code != CLD_STOPPED) return false;
    if (reached()) return true;
    kill(program, SIGCONT);
    std::this_thread::sleep_for(std::chrono::microseconds(30));
  }
}

// The step of the newest checkpoint of a run; 0: there is none.
inline std::int64_t NewestCheckpoint(const fs::path& run) {
  std::int64_t step = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run, none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("checkpoint-")) step = std::max(step, std::stol(name.substr(11)));
  }
  return step;
}

// The message of the qlora::Error that `body` throws, which must be about wrong input.
inline std::string InputError(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace qlora

#endif  // QLORA_TESTS_CLI_TEST_UTIL_H_
