#include "serve/jobs/trainer.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/system.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxOutputBytes = std::int64_t{1} << 20;
constexpr int kCannotRun = 127;

// What the new process does before it becomes the program: nothing but system calls is safe.
struct Start {
  pid_t parent;
  int input, output, log;
  const char* folder;
  const char* program;
  char* const* arguments;
};

[[noreturn]] void Become(const Start& start) {
  EndWithParent();
  if (getppid() != start.parent) _exit(kCannotRun);  // it has ended already
  setpgid(0, 0);                                     // Ctrl+C is for the server
  if (chdir(start.folder) != 0) _exit(kCannotRun);
  constexpr int kNice = 10;
  setpriority(PRIO_PROCESS, 0, kNice);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_DFL);
  dup2(start.input, STDIN_FILENO);
  dup2(start.output, STDOUT_FILENO);
  dup2(start.log, STDERR_FILENO);
  // Connections of the server are not for it, and would stay open with it.
  constexpr int kMostDescriptors = 65'536;
  for (int fd = STDERR_FILENO + 1; fd < kMostDescriptors; ++fd) close(fd);
  execv(start.program, start.arguments);
  _exit(kCannotRun);
}

pid_t Launch(const fs::path& program, const TrainingTask& task) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), task.arguments.begin(), task.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor output(OpenForWriting(task.output, OpenMode::kReplace));
  const Descriptor log(OpenForWriting(task.log, OpenMode::kAppend));
  const std::string folder = task.run.parent_path().string();
  const Start start{.parent = getpid(),
                    .input = input.get(),
                    .output = output.get(),
                    .log = log.get(),
                    .folder = folder.c_str(),
                    .program = words.front().c_str(),
                    .arguments = arguments.data()};
  const pid_t child = fork();
  if (child == 0) Become(start);
  if (child < 0) ThrowRuntime("cannot start the training: {}", std::strerror(errno));
  return child;
}

TrainingEnd RunProcess(const fs::path& program, const TrainingTask& task,
                       const std::function<StopRequest()>& watch) {
  constexpr std::chrono::milliseconds kPause(50);
  // Where whoever started the server ignores it, the system keeps no exit code.
  std::signal(SIGCHLD, SIG_DFL);
  const pid_t child = Launch(program, task);
  StopRequest asked = StopRequest::kNone;
  int status = 0;
  for (pid_t ended = 0; ended == 0;) {
    std::this_thread::sleep_for(kPause);
    ended = waitpid(child, &status, WNOHANG);
    if (ended < 0 && errno == EINTR) ended = 0;
    if (ended < 0) ThrowRuntime("the end of the training is not known: {}", std::strerror(errno));
    const StopRequest stop = watch();
    if (ended == 0 && stop != asked && stop != StopRequest::kNone) {
      kill(child, stop == StopRequest::kNow ? SIGKILL : SIGTERM);
      asked = stop;
    }
  }
  constexpr int kSignalExit = 128;  // as shells say it
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalExit + WTERMSIG(status);
  return {.exit_code = code, .output = ReadTextFile(task.output, kMaxOutputBytes)};
}

}  // namespace

Trainer ProcessTrainer(fs::path program) {
  return [program = std::move(program)](const TrainingTask& task,
                                        const std::function<StopRequest()>& watch) {
    return RunProcess(program, task, watch);
  };
}

}  // namespace qlora
