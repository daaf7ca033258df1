// Trainings as processes.
#include "serve/jobs/trainer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

TEST(ProcessTrainerTest, ReturnsTheExitCodeAndWhatWasPrinted) {
  const TemporaryFolder folder;
  const TrainingTask task{.arguments = {"-c", "echo words; echo more >&2; exit 3"},
                          .run = folder / "run",
                          .output = folder / "out",
                          .log = folder / "log"};
  const TrainingEnd end = ProcessTrainer("/bin/sh")(task, [] { return StopRequest::kNone; });
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.output, "words\n");
  EXPECT_EQ(ReadTextFile(folder / "log"), "more\n");
}

TEST(ProcessTrainerTest, RunsInTheFolderThatHoldsTheRun) {
  const TemporaryFolder folder;
  const TrainingTask task{.arguments = {"-c", "pwd -P"},
                          .run = folder / "run",
                          .output = folder / "out",
                          .log = folder / "log"};
  EXPECT_EQ(ProcessTrainer("/bin/sh")(task, [] { return StopRequest::kNone; }).output,
            std::filesystem::canonical(folder.path()).string() + "\n");
}

// As a shell does with trap '' CHLD; the system keeps no exit codes then.
TEST(ProcessTrainerTest, KnowsTheEndWhereSignalsOfChildrenAreIgnored) {
  const TemporaryFolder folder;
  const TrainingTask task{.arguments = {"-c", "exit 3"},
                          .run = folder / "run",
                          .output = folder / "out",
                          .log = folder / "log"};
  const auto handler = std::signal(SIGCHLD, SIG_IGN);
  const TrainingEnd end = ProcessTrainer("/bin/sh")(task, [] { return StopRequest::kNone; });
  std::signal(SIGCHLD, handler);
  EXPECT_EQ(end.exit_code, 3);
}

TEST(ProcessTrainerTest, StopsByTheSignalsOfTraining) {
  const TemporaryFolder folder;
  const std::filesystem::path ready = folder / "ready";
  TrainingTask task{.arguments = {"-c", "trap 'exit 130' TERM; : >'" + ready.string() +
                                            "'; while :; do sleep 0.01; done"},
                    .run = folder / "run",
                    .output = folder / "out",
                    .log = folder / "log"};
  const Trainer trainer = ProcessTrainer("/bin/sh");
  // A signal before the trap is set would end the shell.
  const auto checkpoint = [&] {
    return std::filesystem::exists(ready) ? StopRequest::kCheckpoint : StopRequest::kNone;
  };
  EXPECT_EQ(trainer(task, checkpoint).exit_code, 130);
  EXPECT_EQ(trainer(task, [] { return StopRequest::kNow; }).exit_code, 137);
}

TEST(ProcessTrainerTest, EndsWithTheServerWhateverEndsThat) {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  // Writes that it runs, and keeps the other end open as long as it lives.
  const TrainingTask task{
      .arguments = {"-c", "exec 3>'" + fifo + "'; echo >&3; exec sleep infinity"},
      .run = folder / "run",
      .output = folder / "out",
      .log = folder / "log"};
  const pid_t server = fork();
  ASSERT_GE(server, 0);
  if (server == 0) {
    ProcessTrainer("/bin/sh")(task, [] { return StopRequest::kNone; });
    _exit(0);
  }
  const int end = open(fifo.c_str(), O_RDONLY);
  char byte = 0;
  EXPECT_EQ(read(end, &byte, 1), 1);
  EXPECT_EQ(kill(server, SIGKILL), 0);
  EXPECT_EQ(waitpid(server, nullptr, 0), server);
  // The training has ended when nobody can write any more.
  while (read(end, &byte, 1) > 0) {
  }
  close(end);
}

TEST(ProcessTrainerTest, AProgramThatIsNotThereIsAnExitCode) {
  const TemporaryFolder folder;
  const TrainingTask task{
      .arguments = {}, .run = folder / "run", .output = folder / "out", .log = folder / "log"};
  const Trainer trainer = ProcessTrainer(folder / "none");
  EXPECT_EQ(trainer(task, [] { return StopRequest::kNone; }).exit_code, 127);
}

}  // namespace
}  // namespace qlora
