// Thirty runs on preferences against a float64 PyTorch loop (tests/golden/preference).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "train/preference_run.h"

namespace qlora {
namespace {

// A line of JSON for each golden run.
std::vector<std::string> GoldenRuns() {
  std::vector<std::string> runs;
  std::ifstream file(PreferenceGoldens() / "logs.jsonl");
  for (std::string line; std::getline(file, line);) runs.push_back(line);
  return runs;
}

// The name that a golden run begins with. Not parsed: every process of this program names all runs
// before it runs one test.
std::string NameOf(const std::string& run) {
  const std::size_t begin = std::strlen(R"({"run":")");
  return run.substr(begin, run.find('"', begin) - begin);
}

// What the golden run `run` was made with.
TrainOptions OptionsOf(const Json& run, const std::filesystem::path& folder) {
  TrainOptions o = PreferenceOptions(folder / "run", run["start"].get<std::string>());
  PreferenceFields& p = o.preference;
  const std::string loss = run["loss"];
  const auto types = run.value("loss_type", std::vector<std::string>{loss});
  p.preference_loss = types;
  if (loss == "cpo") p.preference_loss = {types[0] == "simpo" ? "simpo" : "cpo"};
  for (const double weight : run.value("loss_weights", std::vector<double>{})) {
    p.loss_weights.push_back(std::to_string(weight));
  }
  p.beta = run["beta"];
  o.label_smoothing_factor = run.value("label_smoothing", 0.0);
  p.simpo_gamma = run.value("simpo_gamma", 1.0);
  p.cpo_alpha = loss == "cpo" ? run.value("cpo_alpha", -1.0) : -1.0;
  p.discopop_tau = run.value("discopop_tau", 0.05);
  p.ld_alpha = run.value("ld_alpha", 1.0);
  p.use_weighting = run.value("use_weighting", false);
  p.desirable_weight = run.value("desirable_weight", 1.0);
  p.undesirable_weight = run.value("undesirable_weight", 1.0);
  if (run.contains("nll_over")) p.nll_over = "answers";
  if (run["reference"] == "base" && run["start"] == "adapter_sft") p.reference = "base";
  if (loss == "kto") {
    o.data.dataset = {PreferenceGoldens() / "unpaired.jsonl"};
    o.per_device_train_batch_size = 8;
  } else {
    o.data.eval_dataset = {PreferenceGoldens() / "eval_pairs.jsonl"};
    o.eval_on_start = true;
    o.eval_steps = 20;
  }
  return o;
}

// How much a run amplifies rounding up to a step. Of dpo_discopop, whose loss divides by a tau of
// 0.05: in float64, a change of the first adapter by one unit in the last place of float32 grows
// 170-fold from step 2 to step 19, 1.35 a step; a second loop in float32 comes to 9 times the
// differences of other runs. Of dpo_apo_down: one gradient of the first step is -5e-8 with an error
// of 3e-8 in float32, and Adam, whose epsilon is 1e-8, makes a fifth of a whole update of that; the
// second loop has 2.4 times the differences of other runs from step 3 on.
double AmplificationOf(const std::string& run, int step) {
  if (run == "dpo_discopop") return std::min(40.0, std::pow(1.35, std::max(0, step - 1)));
  if (run == "kto_sft") return 10;
  return run == "dpo_apo_down" && step > 1 ? 4 : 1;
}

// The largest difference of a value that float32 explains: PyTorch in float32 keeps to a quarter
// of these over all steps.
double BoundOf(const std::string& run, int step, const std::string& key, double expected) {
  const double factor = AmplificationOf(run, step);
  const bool is_relative = key == "loss" || key == "grad_norm" || key == "nll_loss";
  if (is_relative) return factor * (std::abs(expected) < 0.1 ? 1e-5 : 1e-4 * std::abs(expected));
  if (key.starts_with("logps/")) return factor * 5e-4;
  if (key.starts_with("logits/")) return factor * 2e-5;
  if (key == "rewards/accuracies") return 0;
  return factor * (run == "dpo_sigmoid_norm" ? 1e-3 : 1e-4);
}

// After `step` updates have begun; 0: before the first.
void ExpectMetrics(const std::string& run, int step, const Json& expected, const Json& found) {
  for (const auto& [name, value] : expected.items()) {
    if (value == 0 && !found.contains(name)) continue;  // a part that this loss does not have
    ASSERT_TRUE(found.contains(name)) << name << " in " << found.dump();
    const std::string key = name.starts_with("eval_") ? name.substr(5) : name;
    EXPECT_NEAR(found[name].get<double>(), value.get<double>(),
                BoundOf(run, step, key, value.get<double>()))
        << name;
  }
}

class PreferenceGoldenTest : public testing::TestWithParam<int> {};

TEST_P(PreferenceGoldenTest, TwentySteps) {
  const std::string line = GoldenRuns().at(GetParam());
  const std::string name = NameOf(line);
  const Json run = Json::parse(line);
  ASSERT_EQ(run["run"], name);
  const TemporaryFolder folder;
  const std::vector<Json> steps = RunPreference(OptionsOf(run, folder.path()));
  ASSERT_EQ(steps.size(), run["steps"].size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(i + 1);
    ExpectMetrics(name, static_cast<int>(i) + 1, run["steps"][i], steps[i]);
  }
  if (!run.contains("eval_before")) return;
  const std::vector<Json> evals = ReadJsonLines(folder / "run/eval_log.jsonl");
  ASSERT_EQ(evals.size(), 2);
  ExpectMetrics(name, 0, run["eval_before"], evals[0]);
  ExpectMetrics(name, 20, run["eval_after"], evals[1]);
}

INSTANTIATE_TEST_SUITE_P(Runs, PreferenceGoldenTest, testing::Range(0, 30),
                         [](const auto& of_test) {
                           return NameOf(GoldenRuns().at(of_test.param));
                         });

}  // namespace
}  // namespace qlora
