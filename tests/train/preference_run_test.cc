// Runs on preferences: what changes nothing, or rounding alone.
#include "train/preference_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace qlora {
namespace {

namespace fs = std::filesystem;

void ExpectNear(const std::vector<Json>& a, const std::vector<Json>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const char* key :
         {"loss", "grad_norm", "rewards/margins", "rewards/chosen", "logits/rejected"}) {
      ASSERT_EQ(a[i][key].is_null(), b[i][key].is_null()) << key;
      if (a[i][key].is_null()) continue;  // of answers with one label there is no margin
      const double value = a[i][key].get<double>();
      EXPECT_NEAR(value, b[i][key].get<double>(), bound * (1 + std::abs(value)))
          << key << " of step " << i + 1;
    }
  }
}

// The gradient norm is that of the whole window, which is clipped: the same sums in other orders,
// of float32 values below 100.
TEST_F(PreferenceRunTest, TheSplitOfAWindowChangesRoundingAlone) {
  for (const bool kto : {false, true}) {
    std::vector<std::vector<Json>> logs;
    for (const int batch : {4, 2, 1}) {
      TrainOptions options = kto ? Kto("run") : Options("run");
      options.per_device_train_batch_size = batch;
      options.gradient_accumulation_steps = 4 / batch;
      options.max_grad_norm = 0.5;
      if (!kto) options.preference.preference_loss = {"sigmoid", "sft"};
      logs.push_back(RunPreference(options));
    }
    EXPECT_GT(logs[0][0]["grad_norm"].get<double>(), 0.5);
    ExpectNear(logs[0], logs[1], 2e-5);
    ExpectNear(logs[0], logs[2], 2e-5);
  }
}

TEST_F(PreferenceRunTest, SharingAndPackingChangeRoundingAlone) {
  TrainOptions options = Options("run");
  const std::vector<Json> shared = RunPreference(options);
  options.data.reading.decision.share_prefix = false;
  ExpectNear(shared, RunPreference(options), 2e-5);
  // All 40 pairs are a step, in another order where they are packed.
  options = Options("run");
  options.per_device_train_batch_size = 40;
  const std::vector<Json> whole = RunPreference(options);
  options.data.packing = true;
  ExpectNear(whole, RunPreference(options), 2e-5);
}

TEST_F(PreferenceRunTest, RecomputationAndThreadsChangeNoBit) {
  const auto log = [&](const std::string& recompute, int threads) {
    TrainOptions options = Options("run");
    options.recompute = recompute;
    std::string text;
    for (Json step : RunPreference(options, threads)) {
      for (const char* key : {"tokens_per_second", "limit_share", "memory", "elapsed"})
        step.erase(key);
      text += step.dump() + "\n";
    }
    return text;
  };
  const std::string expected = log("none", 1);
  EXPECT_EQ(log("none", 3), expected);
  for (const char* recompute : {"attention", "mlp", "layer"}) {
    EXPECT_EQ(log(recompute, 2), expected) << recompute;
  }
}

// The token that both answers begin with may stand in the prompt: only losses of means notice.
TEST_F(PreferenceRunTest, AMovedBoundaryCancelsInLossesOfSums) {
  const auto losses = [&](const char* loss, const std::string& prompt, const std::string& common) {
    TrainOptions options = Options("run");
    options.preference.preference_loss = {loss};
    options.data.dataset = {folder_.Write(
        "pairs.jsonl", fmt::format(R"({{"prompt_ids": [{}], "chosen_ids": [{}300, 301, 2], )"
                                   R"("rejected_ids": [{}302, 2]}})"
                                   "\n",
                                   prompt, common, common))};
    std::vector<double> found;
    for (const Json& step : RunPreference(options)) found.push_back(step["loss"]);
    return found;
  };
  for (const char* loss : {"sigmoid", "hinge", "robust", "ipo"}) {
    const std::vector<double> before = losses(loss, "1, 310", "320, ");
    const std::vector<double> after = losses(loss, "1, 310, 320", "");
    ASSERT_EQ(before.size(), after.size());
    const bool changes = std::abs(before[2] - after[2]) > 1e-3 * std::abs(before[2]);
    EXPECT_EQ(changes, std::string(loss) == "ipo") << loss;
  }
}

// Files are measured as one: what each of them has is in the mean of all once.
TEST_F(PreferenceRunTest, SeveralEvaluationFilesAreOne) {
  for (const char* loss : {"sigmoid", "orpo", "kto"}) {
    SCOPED_TRACE(loss);
    const bool kto = std::string(loss) == "kto";
    const std::vector<Json> lines =
        ReadJsonLines(PreferenceGoldens() / (kto ? "unpaired.jsonl" : "eval_pairs.jsonl"));
    // Of labels, the first file has answers to one prompt alone.
    const std::size_t first = kto ? 1 : 3;
    std::string parts[3];
    for (std::size_t i = 0; i < 8; ++i) {
      const std::string line = lines[i].dump() + "\n";
      parts[i < first ? 0 : 1] += line;
      parts[2] += line;
    }
    const std::string files[3] = {folder_.Write("one.jsonl", parts[0]),
                                  folder_.Write("two.jsonl", parts[1]),
                                  folder_.Write("all.jsonl", parts[2])};
    const auto evaluate = [&](const std::vector<std::string>& eval_dataset) {
      TrainOptions options = kto ? Kto("run") : Options("run");
      options.preference.preference_loss = {loss};
      options.data.eval_dataset = eval_dataset;
      options.eval_steps = 3;
      RunPreference(options);
      return ReadJsonLines(folder_ / "run/eval_log.jsonl").back();
    };
    const Json all = evaluate({files[2]});
    const Json both = evaluate({files[0], files[1]});
    EXPECT_TRUE(both.contains("eval_one_loss")) << both.dump();
    for (const char* name : {"eval_loss", "eval_rewards/chosen", "eval_logps/chosen", "eval_kl"}) {
      ASSERT_EQ(all.contains(name), both.contains(name)) << name;
      if (!all.contains(name)) continue;
      const double value = all[name].get<double>();
      EXPECT_NEAR(value, both[name].get<double>(), 2e-5 * (1 + std::abs(value))) << name;
    }
  }
}

// The start is gone when a run resumes: its log-probabilities are kept, or measured again by an
// adapter made as at the start. A run that is made longer measures further samples, in other passes
// than a run of that length, which rounds otherwise.
TEST_F(PreferenceRunTest, AResumedRunIsAnUnbrokenOneButForRounding) {
  for (const bool kto : {false, true}) {
    const auto make = [&](const std::string& name) {
      TrainOptions options = kto ? Kto(name) : Options(name);
      options.adapter = PreferenceGoldens() / "adapter_sft";
      options.data.shuffle = true;
      options.max_steps = 6;
      options.save_steps = 1;
      return options;
    };
    RunPreference(make("whole"));
    TrainOptions parts = make("parts");
    parts.max_steps = 2;
    RunPreference(parts);
    parts.overwrite_output_dir = false;
    parts.resume_from_checkpoint = "auto";
    parts.max_steps = 4;
    RunPreference(parts);
    EXPECT_TRUE(fs::remove(folder_ / "parts/reference_logps.json"));
    parts.max_steps = 6;
    RunPreference(parts);
    ExpectNear(ReadJsonLines(folder_ / "whole/train_log.jsonl"),
               ReadJsonLines(folder_ / "parts/train_log.jsonl"), 1e-4);
  }
}

// The loss of ORPO is that of its parts, which TRL names so.
TEST_F(PreferenceRunTest, TheLogOddsOfOrpoAreLogged) {
  TrainOptions options = Options("run");
  options.preference.preference_loss = {"orpo"};
  options.per_device_train_batch_size = 1;
  for (const Json& step : RunPreference(options)) {
    const auto of = [&](const char* name) { return step[name].get<double>(); };
    EXPECT_NEAR(of("log_odds_ratio"), -std::log1p(std::exp(-of("log_odds_chosen"))), 1e-12);
    EXPECT_NEAR(of("loss"), of("nll_loss") - 0.1 * of("log_odds_ratio"), 1e-9);
  }
  options.preference.preference_loss = {"cpo"};
  EXPECT_FALSE(RunPreference(options)[0].contains("log_odds_chosen"));
}

// DPO without a reference is CPO without -log p.
TEST_F(PreferenceRunTest, NoReferenceIsLikeOneThatKnowsNothing) {
  TrainOptions options = Options("run");
  options.preference.reference = "none";
  const std::vector<Json> dpo = RunPreference(options);
  EXPECT_FALSE(fs::exists(folder_ / "run/reference_logps.json"));
  options.preference = PreferenceFields();
  options.preference.preference_loss = {"cpo"};
  options.preference.cpo_alpha = 0;
  ExpectNear(dpo, RunPreference(options), 1e-6);
}

TEST_F(PreferenceRunTest, TextsHaveTheTokensOfIds) {
  TrainOptions options = Options("run");
  const std::vector<Json> ids = RunPreference(options);
  options.data.reading.ignore_fields = {"prompt_ids", "chosen_ids", "rejected_ids"};
  const std::vector<Json> texts = RunPreference(options);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i]["loss"], texts[i]["loss"]);
}

TEST_F(PreferenceRunTest, PairsAreAnswersWithLabelsToo) {
  TrainOptions options = Kto("run");
  options.data.dataset = {PreferenceGoldens() / "pairs.jsonl"};
  const std::vector<Json> log = RunPreference(options);
  EXPECT_NEAR(log[0]["loss"].get<double>(), 0.5, 1e-6);
  EXPECT_FALSE(log[2]["rewards/margins"].is_null());  // of chosen and of rejected answers
}

TEST_F(PreferenceRunTest, WeightsAndSmoothingChangeTheLoss) {
  const double plain = RunPreference(Kto("run"))[1]["loss"].get<double>();
  TrainOptions weighted = Kto("run");
  weighted.preference.desirable_weight = 1.33;
  EXPECT_NE(plain, RunPreference(weighted)[1]["loss"].get<double>());
  weighted = Kto("run");
  weighted.preference.undesirable_weight = 1.33;
  EXPECT_NE(plain, RunPreference(weighted)[1]["loss"].get<double>());
  for (const char* loss : {"sigmoid", "robust", "exo_pair"}) {
    TrainOptions options = Options("run");
    options.preference.preference_loss = {loss};
    const Json sharp = RunPreference(options)[1]["loss"];
    options.label_smoothing_factor = 0.1;
    EXPECT_NE(sharp, RunPreference(options)[1]["loss"]) << loss;
  }
}

}  // namespace
}  // namespace qlora
