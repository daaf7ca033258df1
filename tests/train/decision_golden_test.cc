// Twenty steps of decision training against a float64 PyTorch loop (tests/golden/decision).
#include <algorithm>
#include <cmath>

#include "decision/decision_file.h"
#include "qlora/model.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

std::vector<Json> ReadLines(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// A model with its records, adapters and expected runs.
struct GoldenModel {
  fs::path model;
  fs::path data;
};

TrainOptions OptionsOf(const GoldenModel& golden, const Json& run, const fs::path& output_dir) {
  TrainOptions options;
  OptionTable table;
  options.Declare(table);
  std::string types;
  for (const Json& type : run["types"])
    types += (types.empty() ? "" : ",") + type.get<std::string>();
  const std::vector<std::pair<std::string, std::string>> values = {
      {"model_name_or_path", golden.model},
      {"dataset", golden.data / "train.jsonl"},
      {"adapter", golden.data / run["start"].get<std::string>()},
      {"output_dir", output_dir},
      {"decision_template", "plain"},
      {"question_types", types},
      {"soft_targets", run["soft"].get<bool>() ? "true" : "false"},
      {"label_smoothing", run.value("label_smoothing", Json(0)).dump()},
      {"brier_weight", run.value("brier_weight", Json(0)).dump()},
      {"ordinal_weight", run.value("ordinal_weight", Json(0)).dump()},
      {"compute_dtype", "float32"},
      {"use_double_quant", "false"},
      {"shuffle", "false"},
      {"max_steps", "20"},
      {"per_device_train_batch_size", "4"},
      {"gradient_accumulation_steps", "1"},
      {"learning_rate", "2e-3"},
      {"lr_scheduler_type", "constant"},
      {"warmup_ratio", "0"},
      {"max_grad_norm", "1"},
  };
  for (const auto& [key, value] : values) table.Set(key, value, "test");
  options.Complete(table);
  return options;
}

// The same program in float32 stays within a fifth of these bounds (tests/golden/README.md).
void ExpectSteps(const std::vector<Json>& found, const Json& expected) {
  constexpr double kLoss = 1e-4;      // relative
  constexpr double kGradient = 1e-4;  // relative
  constexpr double kBrier = 1e-4;
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i + 1);
    const auto value = [&](const char* key) { return found[i].at(key).get<double>(); };
    const std::vector<double> is = expected[i];
    EXPECT_NEAR(value("loss"), is[0], kLoss * is[0]);
    EXPECT_NEAR(value("grad_norm"), is[1], kGradient * is[1]);
    EXPECT_NEAR(value("accuracy"), is[2], 1e-12);
    EXPECT_NEAR(value("brier"), is[3], kBrier);
    EXPECT_EQ(value("tokens"), is[4]);  // questions
  }
}

// After 20 steps in float32, within a fifth of these bounds, too.
constexpr double kLogProbability = 1e-3;
constexpr double kTemperature = 2e-3;  // relative

// What a trained model answers to held-out questions.
class TrainedModel {
 public:
  TrainedModel(const GoldenModel& golden, const Json& run, const fs::path& adapter)
      : golden_(golden), run_(run), model_(Load(context_, golden, adapter)) {}

  EvalOptions Options() const {
    EvalOptions options;
    options.dataset = {golden_.data / "eval.jsonl"};
    options.reading.decision.question_types = run_["types"].get<std::vector<std::string>>();
    options.reading.decision.soft_targets = run_["soft"].get<bool>();
    return options;
  }

  void ExpectLogProbabilities() {
    EvalOptions options = Options();
    options.decision_temperature = "noul=1";
    const EvalResult result = model_.Evaluate(options);
    std::istringstream lines(result.decision->predictions);
    std::size_t i = 0;
    for (std::string line; std::getline(lines, line); ++i) {
      const std::vector<double> expected = run_["logps_after"].at(i);
      const std::vector<double> p = Json::parse(line)["probabilities"];
      ASSERT_EQ(p.size(), expected.size());
      for (std::size_t k = 0; k < p.size(); ++k) {
        EXPECT_NEAR(std::log(p[k]), expected[k], kLogProbability) << line;
      }
    }
    EXPECT_EQ(i, run_["logps_after"].size());
    ExpectMetrics(result, run_["eval_after"]);
  }

  // Bins are steps: a confidence at an edge falls into either.
  static void ExpectMetrics(const EvalResult& result, const Json& expected) {
    const Json found = Json::parse(result.decision->metrics);
    for (const auto& [type, metrics] : expected.items()) {
      for (const char* name :
           {"n", "accuracy", "log_loss", "brier", "ece", "auroc", "macro_f1", "mae"}) {
        SCOPED_TRACE(type + " " + name);
        if (!metrics.contains(name) || metrics[name].is_null()) continue;
        EXPECT_NEAR(found.at(type).at(name).get<double>(), metrics[name].get<double>(),
                    kLogProbability);
      }
    }
  }

  void ExpectTemperatures(const fs::path& adapter) {
    CalibrateOptions options;
    options.dataset = {golden_.data / "calibration.jsonl"};
    options.reading = Options().reading;
    const CalibrationResult result = Calibrate(model_, options);
    EXPECT_EQ(result.temperatures.size(), run_["temperature"].size());
    for (const auto& [type, expected] : run_["temperature"].items()) {
      EXPECT_NEAR(result.temperatures.at(type), expected.get<double>(),
                  kTemperature * expected.get<double>());
    }
    EXPECT_EQ(ReadDecisionFile(adapter)->temperatures.values(), result.temperatures);
    // A model that is loaded with them uses them.
    Model calibrated = Load(context_, golden_, adapter);
    const EvalResult after = calibrated.Evaluate(Options());
    ExpectMetrics(after, run_["eval_after_temperature"]);
    EXPECT_FALSE(after.decision->metrics_before.empty());
    // Types that are not asked for keep theirs.
    const std::string again = result.temperatures.begin()->first;
    options.reading.decision.question_types = {again};
    EXPECT_EQ(Calibrate(model_, options).temperatures.size(), 1u);
    const std::map<std::string, double> kept = ReadDecisionFile(adapter)->temperatures.values();
    EXPECT_EQ(kept.size(), result.temperatures.size());
    for (const auto& [type, value] : kept) {
      EXPECT_NEAR(value, result.temperatures.at(type), type == again ? kTemperature * value : 0);
    }
    // The template says what the adapter was trained with.
    const TemporaryFolder folder;
    WriteTextFile(folder / "other.jinja",
                  "{{ state | tojson }}{{ instructions | tojson }}{% for o in options %}{{ o.label "
                  "}}{% endfor %}:\n\n");
    options.reading.decision.decision_template = (folder / "other.jinja").string();
    const auto asks = [](std::int64_t, std::int64_t) { ADD_FAILURE() << "it was asked"; };
    EXPECT_THROW(Calibrate(model_, options, asks), Error);
    EXPECT_EQ(ReadDecisionFile(adapter)->temperatures.values(), kept);
  }

  void ExpectPermuted() {
    if (!run_.contains("eval_after_permuted")) return;
    EvalOptions options = Options();
    options.permutations = "all";
    options.decision_temperature = "noul=1";
    const EvalResult result = model_.Evaluate(options);
    ExpectMetrics(result, run_["eval_after_permuted"]);
    EXPECT_EQ(result.decision->flip.has_value(), run_["eval_after"].contains("choice"));
  }

 private:
  static Model Load(Context& context, const GoldenModel& golden, const fs::path& adapter) {
    ModelOptions options;
    options.model_name_or_path = golden.model;
    options.adapter = {adapter};
    options.compute_dtype = "float32";
    return Model::Load(context, options);
  }

  const GoldenModel& golden_;
  const Json& run_;
  Context context_{1};
  Model model_;
};

class DecisionGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(DecisionGoldenTest, TwentyStepsAndTheirAnswers) {
  const GoldenModel golden = {kGolden / "decision" / "tiny-qwen3", kGolden / "decision" / "qwen3"};
  const std::vector<Json> runs = ReadLines(golden.data / "runs.jsonl");
  const auto run = std::find_if(runs.begin(), runs.end(),
                                [](const Json& it) { return it["run"] == GetParam(); });
  ASSERT_NE(run, runs.end());
  const TemporaryFolder folder;
  const fs::path dir = folder / "run";
  {
    Context context(1);
    TrainObserver observer;
    PlanAndTrain(context, OptionsOf(golden, *run, dir), observer);
  }
  ExpectSteps(ReadLines(dir / "train_log.jsonl"), (*run)["steps"]);
  TrainedModel model(golden, *run, dir);
  model.ExpectLogProbabilities();
  model.ExpectPermuted();
  model.ExpectTemperatures(dir);
}

INSTANTIATE_TEST_SUITE_P(Runs, DecisionGoldenTest,
                         testing::Values("choice", "noul", "score", "mixed", "soft", "smooth",
                                         "brier", "ordinal", "continued"),
                         [](const auto& run) { return std::string(run.param); });

// The same with a SentencePiece tokenizer. `choice` is ill-conditioned there.
TEST(DecisionGoldenFilesTest, TwentyStepsOfSharedRuns) {
  const fs::path shared = SharedFolder();
  const GoldenModel golden = {shared / "models" / "stories260K-hf",
                              shared / "golden" / "decision" / "stories260K"};
  if (!fs::exists(golden.data)) GTEST_SKIP() << "no " << golden.data;
  for (const char* name : {"brier", "ordinal"}) {
    SCOPED_TRACE(name);
    const Json run = ReadJsonFile(golden.data / "logs" / (std::string(name) + ".json"));
    Json steps;
    for (const Json& step : run["steps"]) {
      steps.push_back(
          {step["loss"], step["grad_norm"], step["accuracy"], step["brier"], step["questions"]});
    }
    const TemporaryFolder folder;
    Context context(2);
    TrainObserver observer;
    PlanAndTrain(context, OptionsOf(golden, run, folder / "run"), observer);
    ExpectSteps(ReadLines(folder / "run" / "train_log.jsonl"), steps);
  }
}

}  // namespace
}  // namespace qlora
