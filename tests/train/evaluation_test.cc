// Evaluation during training: token accuracy, the best checkpoint, early stopping.
#include <map>
#include <set>

#include "checkpoint/best_evaluation.h"
#include "checkpoint/checkpoint_folders.h"
#include "objective/objective.h"
#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class Evals : public TrainObserver {
 public:
  explicit Evals(std::int64_t stop_after = -1) : stop_after_(stop_after) {}
  void OnStep(const StepReport& report) override { step = report.step; }
  void OnEval(std::int64_t at, const EvalReport& report) override { found[at] = report; }
  bool ShouldStop() override { return step == stop_after_; }

  std::map<std::int64_t, EvalReport> found;
  std::int64_t step = 0;

 private:
  std::int64_t stop_after_;
};

class EvaluationTest : public TinyRunTest {
 protected:
  // A learning rate at which the held-out loss falls at first and rises later.
  TrainOptions EvalOptions(const std::string& name) const {
    TrainOptions options = Options(name);
    options.data.val_set_size = 6;
    options.eval_steps = 2;
    options.max_steps = 40;
    options.lora_dropout = 0;
    options.learning_rate = 3e-2;
    options.lr_scheduler_type = "constant";
    return options;
  }
  static RunSummary Train(const TrainOptions& options, Evals& evals) {
    Context context(2);
    return PlanAndTrain(context, options, evals);
  }
  static std::int64_t BestOf(const Evals& evals) {
    std::int64_t best = evals.found.begin()->first;
    for (const auto& [step, report] : evals.found) {
      if (report.loss < evals.found.at(best).loss) best = step;
    }
    return best;
  }
};

TEST_F(EvaluationTest, EachFileHasALoss) {
  TrainOptions options = EvalOptions("run");
  options.data.val_set_size = 0;
  WriteTextFile(root_ / "one.jsonl", "{\"text\": \"Once upon a time.\"}\n");
  WriteTextFile(root_ / "two.jsonl",
                "{\"text\": \"There were three bears in a house.\"}\n{\"text\": \"Soup.\"}\n");
  options.data.eval_dataset = {root_ / "one.jsonl", root_ / "two.jsonl"};
  options.max_steps = 2;
  Evals evals;
  Train(options, evals);
  const EvalReport& both = evals.found.at(2);
  ASSERT_EQ(both.files.size(), 2u);
  EXPECT_EQ(both.files[0].name, "one");
  EXPECT_EQ(both.files[1].name, "two");
  EXPECT_EQ(both.files[0].tokens + both.files[1].tokens, both.tokens);
  const double sum = both.files[0].loss * static_cast<double>(both.files[0].tokens) +
                     both.files[1].loss * static_cast<double>(both.files[1].tokens);
  EXPECT_DOUBLE_EQ(sum / static_cast<double>(both.tokens), both.loss);
  const std::string log = ReadTextFile(root_ / "run" / "eval_log.jsonl");
  EXPECT_NE(log.find("\"eval_two_loss\":"), std::string::npos) << log;
  // A weight would be dropped without a word.
  options.data.eval_dataset = {(root_ / "one.jsonl").string() + ":0.5"};
  Context context(1);
  EXPECT_THROW(PlanTraining(context, options), Error);
}

TEST_F(EvaluationTest, SeveralTimesInAnEpochAndByAShareOfTheRun) {
  TrainOptions options = EvalOptions("run");
  options.eval_steps = 0;
  options.evals_per_epoch = 2;
  options.save_ratio = 0.5;
  options.max_steps = -1;
  options.num_train_epochs = 2;
  Evals evals;
  const RunSummary summary = Train(options, evals);
  EXPECT_EQ(evals.found.size(), 4u);
  EXPECT_TRUE(evals.found.contains(summary.steps));
  EXPECT_EQ(ListCheckpoints(options.output_dir).size(), 2u);
  options.eval_steps = 3;
  Context context(1);
  EXPECT_THROW(PlanTraining(context, options), Error) << "two intervals";
}

TEST_F(EvaluationTest, KeepsTheBestCheckpointAndEndsWithIt) {
  TrainOptions options = EvalOptions("run");
  options.load_best_model_at_end = true;
  options.save_steps = 4;
  options.save_total_limit = 1;
  Evals evals;
  const RunSummary summary = Train(options, evals);
  ASSERT_EQ(evals.found.size(), 20u);
  const std::int64_t best = BestOf(evals);
  ASSERT_LT(best, 40) << "choose a higher learning rate";
  EXPECT_EQ(summary.best_step, best);
  EXPECT_TRUE(evals.found.at(best).best);
  const fs::path kept = CheckpointDir(options.output_dir, best);
  EXPECT_EQ(ReadTextFile(kept / "adapter_model.safetensors"), Adapter("run"));
  EXPECT_EQ(ListCheckpoints(options.output_dir).size(), 2u);  // the best and the newest
}

TEST_F(EvaluationTest, ACheckpointOfTheBestAloneGoesWithABetterOne) {
  TrainOptions options = EvalOptions("run");
  options.load_best_model_at_end = true;
  options.save_steps = 16;
  Evals evals;
  const std::int64_t best = Train(options, evals).best_step;
  std::set<std::int64_t> expected = {16, 32, 40, best};
  std::set<std::int64_t> found;
  for (const fs::path& dir : ListCheckpoints(options.output_dir)) {
    found.insert(StepOfCheckpoint(dir).value());
  }
  EXPECT_EQ(found, expected);
}

TEST_F(EvaluationTest, ABestCheckpointThatIsTheNewestCountsOnce) {
  TrainOptions options = EvalOptions("run");
  options.load_best_model_at_end = true;
  options.max_steps = 6;
  options.save_steps = 2;
  options.save_total_limit = 1;
  Evals evals;
  ASSERT_EQ(Train(options, evals).best_step, 6) << "choose a lower learning rate";
  EXPECT_EQ(ListCheckpoints(options.output_dir).size(), 1u);
}

TEST_F(EvaluationTest, TheBestCheckpointOfAnotherFolderCounts) {
  TrainOptions options = EvalOptions("whole");
  options.load_best_model_at_end = true;
  Evals whole;
  const std::int64_t best = Train(options, whole).best_step;
  options.resume_from_checkpoint = CheckpointDir(options.output_dir, best).string() + "/";
  options.output_dir = root_ / "rest";
  Evals rest;
  EXPECT_EQ(Train(options, rest).best_step, best);
  // The folder has all that a longer run needs.
  EXPECT_TRUE(fs::exists(CheckpointDir(options.output_dir, best) / kTrainerState));
  EXPECT_TRUE(Adapter("rest") == Adapter("whole"));
}

TEST_F(EvaluationTest, StopsEarlyAndResumesAsIfNeverInterrupted) {
  TrainOptions options = EvalOptions("whole");
  options.early_stopping_patience = 3;
  Evals evals;
  const RunSummary summary = Train(options, evals);
  EXPECT_TRUE(summary.stopped_early);
  EXPECT_EQ(summary.steps, BestOf(evals) + 2 * 3);

  // Interrupted on a step whose evaluation is due: it is made up for.
  options.output_dir = root_ / "parts";
  Evals first(6);
  EXPECT_TRUE(Train(options, first).interrupted);
  EXPECT_FALSE(first.found.contains(6));
  options.resume_from_checkpoint = "auto";
  Evals second;
  EXPECT_EQ(Train(options, second).steps, summary.steps);
  EXPECT_EQ(second.found.at(6).loss, evals.found.at(6).loss);
  EXPECT_EQ(Steps("whole"), Steps("parts"));
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(EvaluationTest, AccuracyIsTheShareOfFirstChoices) {
  TrainOptions options = EvalOptions("run");
  options.metric_for_best_model = "token_accuracy";
  options.load_best_model_at_end = true;
  options.eval_on_start = true;
  Evals evals;
  const RunSummary summary = Train(options, evals);
  double best = 0;
  for (const auto& [step, report] : evals.found) {
    const double hits =
        ValueOf(report.metrics, "token_accuracy") * static_cast<double>(report.tokens);
    EXPECT_NEAR(hits, std::round(hits), 1e-9);
    if (step > 0) best = std::max(best, ValueOf(report.metrics, "token_accuracy"));
  }
  EXPECT_EQ(ValueOf(evals.found.at(summary.best_step).metrics, "token_accuracy"), best);
  EXPECT_GT(best, ValueOf(evals.found.at(0).metrics, "token_accuracy"));
}

TEST_F(EvaluationTest, TheBestMetricIsOneOfTheObjective) {
  TrainOptions options = EvalOptions("run");
  options.metric_for_best_model = "brier";
  ExpectRefused(options, "expected one of loss, token_accuracy, found 'brier'");
  OptionTable table;
  options.Declare(table);
  for (const std::string_view name : kBestMetrics) table.Set("metric_for_best_model", name, "test");
}

// Asks to stop in the middle of the second evaluation.
class StopsInEvaluation : public Evals {
 public:
  bool ShouldStop() override { return found.size() == 1 && step == 4 && ++asked_ > 1; }

 private:
  int asked_ = 0;
};

TEST_F(EvaluationTest, AnInterruptedEvaluationIsMadeUpFor) {
  std::string lines;  // more than one pass
  for (int i = 0; i < 8; ++i) lines += ReadTextFile(kGolden / "train-20" / "data.jsonl");
  WriteTextFile(root_ / "eval.jsonl", lines);
  TrainOptions options = Options("whole");
  options.data.eval_dataset = {root_ / "eval.jsonl"};
  options.eval_steps = 2;
  options.max_steps = 6;
  Evals whole;
  Train(options, whole);
  options.output_dir = root_ / "parts";
  StopsInEvaluation first;
  EXPECT_TRUE(Train(options, first).interrupted);
  EXPECT_FALSE(first.found.contains(4));
  options.resume_from_checkpoint = "auto";
  Evals second;
  Train(options, second);
  EXPECT_EQ(second.found.at(4).loss, whole.found.at(4).loss);
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

// Asks for the result after a step.
class FinishAfter : public TrainObserver {
 public:
  explicit FinishAfter(std::int64_t step) : step_(step) {}
  void OnStep(const StepReport& report) override { done_ = report.step; }
  bool ShouldFinish() override { return done_ >= step_; }

 private:
  std::int64_t step_;
  std::int64_t done_ = 0;
};

TEST_F(EvaluationTest, AnObserverFinishesTheRun) {
  TrainOptions options = Options("run");
  options.max_steps = 6;
  FinishAfter third(3);
  Context context(2);
  const RunSummary summary = PlanAndTrain(context, options, third);
  EXPECT_TRUE(summary.stopped_early);
  EXPECT_FALSE(summary.interrupted);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(summary.adapter_dir, options.output_dir);
  EXPECT_TRUE(fs::exists(CheckpointDir(options.output_dir, 3) / kTrainerState));
  EXPECT_FALSE(Adapter("run").empty());

  // The rest of the run, as if it had never been stopped.
  options.resume_from_checkpoint = "auto";
  FinishAfter never(100);
  EXPECT_EQ(PlanAndTrain(context, options, never).steps, 6);
  TrainOptions whole = Options("whole");
  whole.max_steps = 6;
  PlanAndTrain(context, whole, never);
  EXPECT_TRUE(Adapter("run") == Adapter("whole"));
}

TEST_F(EvaluationTest, NeedsEvaluationData) {
  TrainOptions options = Options("run");
  options.early_stopping_patience = 1;
  EXPECT_THROW(Run(options), Error);
}

TEST(BestEvaluation, CountsEvaluationsWithoutGain) {
  BestEvaluation best;
  EXPECT_TRUE(best.Add(1, 2.0, false, 0.1));
  EXPECT_FALSE(best.Add(2, 1.95, false, 0.1));
  EXPECT_EQ(best.since_best, 1);
  EXPECT_TRUE(best.Add(3, 1.8, false, 0.1));
  EXPECT_EQ(best.since_best, 0);
  EXPECT_FALSE(best.Add(4, std::nan(""), false, 0));
  EXPECT_EQ(best.step, 3);
}

TEST_F(EvaluationTest, TellsHowFarItIs) {
  class Progress : public TrainObserver {
   public:
    void OnEvalProgress(std::int64_t done, std::int64_t total) override {
      EXPECT_GE(done, last);
      EXPECT_LT(done, total);
      EXPECT_EQ(total, 200);
      last = done;
    }
    std::int64_t last = 0;
  };
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += "{\"text\": \"A text of some tokens, of which there are more.\"}\n";
  WriteTextFile(root_ / "eval.jsonl", lines);
  TrainOptions options = Options("run");
  options.max_steps = 1;
  options.data.eval_dataset = {root_ / "eval.jsonl"};
  Context context(1);
  Progress progress;
  PlanAndTrain(context, options, progress);
  EXPECT_GT(progress.last, 0);
}

}  // namespace
}  // namespace qlora
