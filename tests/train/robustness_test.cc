// Runs that go wrong: killed at any moment, on a full disk, with losses that are not finite.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "qlora/error.h"
#include "step/loss_spikes.h"
#include "test_build.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using RobustnessTest = TinyRunTest;
using Clock = std::chrono::steady_clock;

// Runs in a child process, which exits with 0 when the run ends by itself.
pid_t RunInChild(const TrainOptions& options) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    Context context(1);
    TrainObserver observer;
    PlanAndTrain(context, options, observer);
    _exit(0);
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    _exit(1);
  }
}

TEST_F(RobustnessTest, KilledManyTimes) {
  // Sanitizers see all of the code in a few kills; more of them find moments that matter to files.
  const int kKills = Sanitized() ? 10 : 50;
  const auto options = [&](const std::string& name) {
    TrainOptions o = Options(name);
    o.max_steps = 30;
    o.save_steps = 1;
    o.save_total_limit = 2;
    o.data.val_set_size = 4;
    o.eval_steps = 3;
    o.load_best_model_at_end = true;
    o.resume_from_checkpoint = "auto";
    return o;
  };
  const auto start = Clock::now();
  int status = 0;
  waitpid(RunInChild(options("whole")), &status, 0);
  ASSERT_EQ(status, 0);
  const std::chrono::duration<double> whole = Clock::now() - start;

  std::mt19937 random(7);
  // Moments up to a third of a run, so that a run is killed several times before it ends.
  std::uniform_real_distribution<double> moment(0, whole.count() / 3);
  int finished = 0;
  int kills = 0;
  while (kills < kKills || finished == 0) {
    const pid_t child = RunInChild(options("killed"));
    if (kills < kKills) std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    if (kills < kKills) kill(child, SIGKILL);
    waitpid(child, &status, 0);
    for (const fs::path& checkpoint : ListCheckpoints(root_ / "killed")) {
      EXPECT_NO_THROW(CheckCheckpoint(checkpoint)) << "after " << kills << " kills";
    }
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ++kills;
      continue;
    }
    ASSERT_EQ(status, 0) << "the run could not go on after " << kills << " kills";
    EXPECT_EQ(Steps("whole"), Steps("killed"));
    EXPECT_TRUE(Adapter("whole") == Adapter("killed"));
    fs::remove_all(root_ / "killed");
    ++finished;
  }
  EXPECT_EQ(kills, kKills);
}

// Lets files grow to `bytes` at most once a step is done: a disk that fills up during the run.
class FillDiskAfter : public TrainObserver {
 public:
  FillDiskAfter(std::int64_t step, rlim_t bytes) : step_(step), bytes_(bytes) {}
  void OnStep(const StepReport& report) override {
    if (report.step != step_) return;
    const rlimit limit = {bytes_, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  void OnCheckpoint(const std::string& dir) override { saved_.push_back(dir); }
  const std::vector<std::string>& saved() const { return saved_; }

 private:
  std::int64_t step_;
  rlim_t bytes_;
  std::vector<std::string> saved_;
};

TEST_F(RobustnessTest, FullDiskLeavesTheLastGoodCheckpoint) {
  TrainOptions options = Options("run");
  options.save_steps = 2;
  Run(Options("whole"));
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  FillDiskAfter observer(5, 8192);  // the log fits, the weights do not
  const auto failure = [&](const TrainOptions& run, TrainObserver& filling) -> std::string {
    try {
      Context context(1);
      PlanAndTrain(context, run, filling);
      ADD_FAILURE() << "the run ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRuntime);
      return error.what();
    }
    return "";
  };
  const std::string message = failure(options, observer);
  // Where no checkpoint is there yet, there is nothing to resume from.
  setrlimit(RLIMIT_FSIZE, &before);
  TrainOptions at_once = options;
  at_once.output_dir = root_ / "at-once";
  FillDiskAfter at_once_observer(1, 8192);
  const std::string first_message = failure(at_once, at_once_observer);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(first_message.find("cannot be written"), std::string::npos) << first_message;
  EXPECT_EQ(first_message.find("checkpoints so far"), std::string::npos) << first_message;
  const fs::path unwritten = root_ / "run" / "checkpoint-6" / "adapter_model.safetensors";
  EXPECT_EQ(message.rfind(unwritten.string() + ": cannot be written", 0), 0u) << message;
  EXPECT_NE(message.find("the checkpoints so far stay in " + (root_ / "run").string()),
            std::string::npos)
      << message;

  ASSERT_EQ(observer.saved().size(), 2u);
  const std::vector<fs::path> left = ListCheckpoints(root_ / "run");
  ASSERT_EQ(left.size(), 2u);
  for (const fs::path& checkpoint : left) EXPECT_NO_THROW(CheckCheckpoint(checkpoint));
  for (const auto& entry : fs::directory_iterator(root_ / "run")) {
    EXPECT_EQ(entry.path().filename().string().find(".unfinished"), std::string::npos);
  }
  options.resume_from_checkpoint = "auto";
  Run(options);
  EXPECT_EQ(Steps("whole"), Steps("run"));
  EXPECT_TRUE(Adapter("whole") == Adapter("run"));
}

// Puts a folder in the place of a file after a step, so that the file can no longer be read.
class SpoilAfter : public TrainObserver {
 public:
  SpoilAfter(std::int64_t step, fs::path file) : step_(step), file_(std::move(file)) {}
  void OnStep(const StepReport& report) override {
    if (report.step != step_) return;
    fs::remove(file_);
    fs::create_directory(file_);
  }

 private:
  std::int64_t step_;
  fs::path file_;
};

TEST_F(RobustnessTest, ATokenizerThatCannotBeCopiedLeavesNoCheckpoint) {
  Run(Options("first"));
  const fs::path file = root_ / "first" / "tokenizer_config.json";
  Json tokenizer = ReadJsonFile(file);
  tokenizer["eos_token"] = "<unk>";
  WriteTextFile(file, tokenizer.dump());
  TrainOptions options = Options("next");
  options.adapter = root_ / "first";
  options.save_steps = 2;
  SpoilAfter observer(3, file);
  Context context(2);
  EXPECT_THROW(PlanAndTrain(context, options, observer), Error);
  const fs::path kept = root_ / "next" / "checkpoint-2";
  EXPECT_EQ(ListCheckpoints(root_ / "next"), std::vector<fs::path>{kept});
  EXPECT_EQ(ReadTextFile(kept / "tokenizer_config.json"), tokenizer.dump());
  EXPECT_FALSE(fs::exists(root_ / "next" / "checkpoint-4"));
  EXPECT_FALSE(fs::exists(UnfinishedCheckpointDir(root_ / "next", 4)));
}

class Recorder : public TrainObserver {
 public:
  void OnStep(const StepReport& report) override { steps.push_back(report); }
  void OnEval(std::int64_t, const EvalReport& report) override { evals.push_back(report); }
  std::vector<StepReport> steps;
  std::vector<EvalReport> evals;
};

TEST_F(RobustnessTest, TheSummaryGivesTheMeanLossOfTheWholeRun) {
  Recorder recorder;
  Context context(2);
  const double mean = PlanAndTrain(context, Options("whole"), recorder).mean_loss;
  ASSERT_EQ(recorder.steps.size(), 12u);
  double losses = 0;
  for (const StepReport& step : recorder.steps) losses += step.loss;
  EXPECT_DOUBLE_EQ(mean, losses / 12);

  TrainOptions options = Options("run");
  Run(options, 3);
  fs::copy(root_ / "run", root_ / "older", fs::copy_options::recursive);
  options.resume_from_checkpoint = "auto";
  Recorder rest;
  EXPECT_EQ(PlanAndTrain(context, options, rest).mean_loss, mean);

  // Of an older checkpoint, the steps since.
  const fs::path state = root_ / "older" / "checkpoint-3" / "trainer_state.json";
  Json json = ReadJsonFile(state);
  for (const char* key : {"loss_sum", "loss_sum_steps", "state_crc32"}) {
    ASSERT_EQ(json.erase(key), 1u);
  }
  WriteTextFile(state, json.dump());
  options.output_dir = root_ / "older";
  losses = 0;
  for (const StepReport& step : rest.steps) losses += step.loss;
  Recorder again;
  EXPECT_DOUBLE_EQ(PlanAndTrain(context, options, again).mean_loss, losses / 9);
}

TEST_F(RobustnessTest, StopsAfterStepsThatAreNotFinite) {
  TrainOptions options = Options("run");
  options.learning_rate = 1e25;  // the first update throws the activations out of range
  options.lr_scheduler_type = "constant";
  options.max_skipped_steps = 4;
  options.max_grad_norm = 0;
  Recorder recorder;
  std::string message;
  try {
    Context context(2);
    PlanAndTrain(context, options, recorder);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    message = error.what();
  }
  EXPECT_NE(message.find("4 consecutive steps"), std::string::npos) << message;
  EXPECT_NE(message.find("model.layers.0"), std::string::npos) << message;
  ASSERT_EQ(recorder.steps.size(), 5u);
  EXPECT_FALSE(recorder.steps[0].skipped);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_TRUE(recorder.steps[i].skipped);
  CheckCheckpoint(root_ / "run" / "checkpoint-5");
  const Json state = ReadJsonFile(root_ / "run" / "checkpoint-5" / "trainer_state.json");
  EXPECT_EQ(state.at("skipped_steps").get<int>(), 4);
}

TEST_F(RobustnessTest, ARunThatEndsInANaNOrInHugeValuesHasDiverged) {
  TrainOptions options = Options("run");
  options.learning_rate = 1e25;  // every step after the first is not finite
  options.lr_scheduler_type = "constant";
  options.max_grad_norm = 0;
  options.overwrite_output_dir = true;
  Context context(2);
  TrainObserver observer;
  for (const auto& [steps, reason] : {std::pair(1, "the values of the adapter are of the size "),
                                      {2, "the last step, 2, held a NaN or Inf"},
                                      {3, "every step from 2 on held a NaN or Inf"}}) {
    options.max_steps = steps;
    const RunSummary summary = PlanAndTrain(context, options, observer);
    EXPECT_EQ(summary.skipped_steps, steps - 1);
    EXPECT_TRUE(summary.diverged);
    EXPECT_EQ(summary.divergence.rfind(reason, 0), 0u) << summary.divergence;
  }
}

TEST_F(RobustnessTest, ARenamedFolderIsSaidAndLosesNothing) {
  struct Renamer : TrainObserver {
    fs::path dir;
    std::vector<std::string> warnings;
    void OnStep(const StepReport& report) override {
      if (report.step == 3) fs::rename(dir, dir.string() + "-renamed");
    }
    void OnWarning(const std::string& text) override { warnings.push_back(text); }
    bool ShouldStop() override { return !warnings.empty(); }
  } observer;
  Run(Options("whole"));
  TrainOptions options = Options("run");
  observer.dir = options.output_dir;
  options.save_steps = 2;
  Context context(1);
  PlanAndTrain(context, options, observer);
  ASSERT_EQ(observer.warnings.size(), 1u);
  EXPECT_NE(observer.warnings[0].find("was renamed, removed or replaced"), std::string::npos);
  EXPECT_TRUE(fs::exists(root_ / "run-renamed" / "checkpoint-2" / "trainer_state.json"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "train_config.json"));
  options.resume_from_checkpoint = "auto";
  Run(options);
  EXPECT_EQ(ListCheckpoints(root_ / "run").back(), root_ / "run" / "checkpoint-12");
  EXPECT_TRUE(Adapter("whole") == Adapter("run"));
}

// The run of another process may have the name by then.
TEST_F(RobustnessTest, AFolderInThePlaceOfARenamedOneIsNotWritten) {
  struct Replacer : TrainObserver {
    fs::path dir;
    void OnStep(const StepReport& report) override {
      if (report.step != 3) return;
      fs::rename(dir, dir.string() + "-renamed");
      fs::create_directory(dir);
    }
  } observer;
  TrainOptions options = Options("run");
  observer.dir = options.output_dir;
  options.save_steps = 2;
  options.max_steps = 5;
  Context context(1);
  try {
    PlanAndTrain(context, options, observer);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_NE(std::string(error.what()).find("was renamed, removed or replaced"),
              std::string::npos);
  }
  EXPECT_TRUE(fs::is_empty(root_ / "run"));
}

TEST_F(RobustnessTest, AutoPassesOverADamagedCheckpoint) {
  TrainOptions options = Options("run");
  options.save_steps = 4;
  Run(Options("whole"));
  Run(options, 8);
  fs::resize_file(root_ / "run" / "checkpoint-8" / "optimizer.safetensors", 1000);
  options.resume_from_checkpoint = "auto";
  Recorder recorder;
  Context context(2);
  const TrainPlan plan = PlanTraining(context, options);
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_NE(plan.warnings[0].find("checkpoint-8 is damaged"), std::string::npos);
  Train(context, plan, recorder);
  EXPECT_EQ(recorder.steps.front().step, 5);
  EXPECT_TRUE(Adapter("whole") == Adapter("run"));
}

TEST(LossSpikes, AreMarkedAndNothingElse) {
  LossSpikes losses;
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.05);
  int spikes = 0;
  for (int i = 0; i < 500; ++i) spikes += losses.Add(3 - i * 0.002 + noise(random)) ? 1 : 0;
  EXPECT_EQ(spikes, 0);
  EXPECT_TRUE(losses.Add(4.0));
  EXPECT_FALSE(losses.Add(2.0));
}

}  // namespace
}  // namespace qlora
