// Properties of runs on preferences: what changes nothing, what is refused, what is kept.
#include "train/preference_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "base/file.h"
#include "io/test_util.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class PreferenceRunTest : public testing::Test {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = PreferenceOptions(folder_ / name);
    options.max_steps = 3;
    return options;
  }
  TrainOptions Kto(const std::string& name) const {
    TrainOptions options = Options(name);
    options.data.dataset = {PreferenceGoldens() / "unpaired.jsonl"};
    options.per_device_train_batch_size = 8;
    options.preference.preference_loss = {"kto"};
    return options;
  }
  static void ExpectNear(const std::vector<Json>& a, const std::vector<Json>& b, double bound) {
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

  TemporaryFolder folder_;
};

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

TEST_F(PreferenceRunTest, TheFirstRewardsAreZero) {
  const auto expect_zero = [&](const std::string& what, const TrainOptions& options) {
    SCOPED_TRACE(what);
    const Json first = RunPreference(options)[0];
    EXPECT_NEAR(first["loss"].get<double>(), std::log(2.0), 1e-6);
    EXPECT_NEAR(first["rewards/chosen"].get<double>(), 0, 1e-5);
    EXPECT_NEAR(first["rewards/rejected"].get<double>(), 0, 1e-5);
  };
  TrainOptions options = Options("run");
  options.max_steps = 1;
  options.adapter.clear();
  expect_zero("lora", options);
  for (const char* init : {"pissa", "olora", "loftq"}) {
    options.init_lora_weights = init;
    expect_zero(init, options);
  }
  options.init_lora_weights = "default";
  options.use_dora = true;
  expect_zero("dora", options);
  options.use_dora = false;
  options.modules_to_save = {"embed_tokens", "lm_head"};
  expect_zero("modules", options);
  options = PreferenceOptions(folder_ / "run", "adapter_sft");
  options.max_steps = 1;
  expect_zero("continued", options);
  options.preference.reference = "base";
  EXPECT_NEAR(RunPreference(options)[0]["loss"].get<double>(), 0.152589, 1e-5);
  // Another adapter as the reference: that of the start.
  options.preference.reference = PreferenceGoldens() / "adapter_sft";
  expect_zero("folder", options);
}

// With a new adapter that is the base, with a continued one the start, unless the base is named.
TEST_F(PreferenceRunTest, LabelsAreMeasuredAgainstTheReference) {
  TrainOptions options = Kto("run");
  const auto rewards = [](const std::vector<Json>& log, std::size_t step) {
    double sum = 0;
    for (const char* name : {"rewards/chosen", "rewards/rejected"}) {
      if (!log[step][name].is_null()) sum += std::abs(log[step][name].get<double>());
    }
    return sum;
  };
  options.adapter.clear();
  for (const char* adapter : {"", "adapter_sft"}) {
    SCOPED_TRACE(adapter);
    if (*adapter != 0) options.adapter = PreferenceGoldens() / adapter;
    const std::vector<Json> log = RunPreference(options);
    EXPECT_NEAR(log[0]["loss"].get<double>(), 0.5, 1e-6);
    EXPECT_NEAR(rewards(log, 0), 0, 1e-5);
    EXPECT_GT(rewards(log, 1), 1e-3);
  }
  options.preference.reference = "base";
  EXPECT_GT(rewards(RunPreference(options), 0), 0.1);
}

// The reference has a rank and targets of its own, which are not those of the run.
TEST_F(PreferenceRunTest, TheReferenceMayBeAnotherKindOfAdapter) {
  TrainOptions options = PreferenceOptions(folder_ / "run", "adapter_sft");
  options.max_steps = 1;
  options.preference.reference = "base";
  const double expected = RunPreference(options)[0]["logps/chosen"].get<double>() -
                          RunPreference(options)[0]["rewards/chosen"].get<double>() / 0.1;
  TrainOptions fresh = Options("small");
  fresh.adapter.clear();
  fresh.lora_r = 2;
  fresh.lora_target_modules = {"q_proj"};
  fresh.init_lora_weights = "default";
  fresh.learning_rate = 1e-9;
  fresh.max_steps = 1;
  RunPreference(fresh);
  // B is 0: the base.
  options.preference.reference = folder_ / "small";
  const Json first = RunPreference(options)[0];
  EXPECT_NEAR(first["logps/chosen"].get<double>() - first["rewards/chosen"].get<double>() / 0.1,
              expected, 1e-3);
}

TEST_F(PreferenceRunTest, PairsAreNamedWhereNothingIsSaidOfPreferences) {
  for (const char* record :
       {R"({"prompt": "Once", "chosen": " upon", "rejected": " a"})",
        R"({"instruction": "Once", "chosen_response": " upon", "rejected_response": " a"})",
        R"({"input": {"messages": []}, "preferred_output": [], "non_preferred_output": []})"}) {
    TrainOptions options = Options("plain");
    options.preference.preference_loss.clear();
    options.data.dataset = {folder_.Write("pairs.jsonl", record)};
    ExpectRefused([&] { RunPreference(options); }, "preference_loss sigmoid");
  }
}

TEST_F(PreferenceRunTest, LengthIsWarnedOfWhereTheLossGrowsWithIt) {
  const auto warns = [&](const char* loss, const char* advice) {
    TrainOptions options = Options("plan");
    options.preference.preference_loss = {loss};
    options.data.dataset = {folder_.Write(
        "pairs.jsonl", R"({"prompt": "Once", "chosen": " upon a time in a wood", "rejected": "."})"
                       "\n")};
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    return std::ranges::any_of(plan.warnings, [&](const std::string& text) {
      return text.find("their length") != std::string::npos &&
             text.find(advice) != std::string::npos;
    });
  };
  EXPECT_TRUE(warns("sigmoid", "ld_alpha"));
  EXPECT_TRUE(warns("cpo", "simpo"));
  EXPECT_FALSE(warns("cpo", "ld_alpha"));
  for (const char* loss : {"ipo", "sigmoid_norm", "simpo", "orpo"}) EXPECT_FALSE(warns(loss, ""));
}

TEST_F(PreferenceRunTest, AReferenceThatIsTheAdapterOfTheRunIsNamed) {
  TrainOptions options = PreferenceOptions(folder_ / "run", "adapter_sft");
  const auto says = [&] {
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    return std::ranges::any_of(plan.warnings, [](const std::string& text) {
      return text.find("is the adapter that training continues") != std::string::npos;
    });
  };
  EXPECT_FALSE(says());
  options.preference.reference = options.adapter + "/.";
  EXPECT_TRUE(says());
  options.preference.reference = PreferenceGoldens() / "adapter_init";
  EXPECT_FALSE(says());
  // Before the run there is no other adapter in its folder.
  options.preference.reference = options.output_dir;
  options.overwrite_output_dir = false;
  fs::create_directory(options.output_dir);
  ExpectRefused([&] { RunPreference(options); }, "is output_dir, where this run writes");
}

// What the run would find only after it has replaced an older one.
TEST_F(PreferenceRunTest, NothingIsReplacedByARunThatCannotBegin) {
  RunPreference(Options("run"));
  const std::string log = ReadTextFile(folder_ / "run/train_log.jsonl");
  const auto refused = [&](const TrainOptions& options, const std::string& what) {
    SCOPED_TRACE(what);
    ExpectRefused([&] { RunPreference(options); }, what);
    EXPECT_EQ(ReadTextFile(folder_ / "run/train_log.jsonl"), log);
  };
  TrainOptions options = Options("run");
  options.preference.reference = folder_ / "nowhere";
  refused(options, "nowhere");
  options.preference.reference = folder_ / "run";
  refused(options, "reference");
  fs::create_directory(folder_ / "damaged");
  fs::copy_file(PreferenceGoldens() / "adapter_sft/adapter_config.json",
                folder_ / "damaged/adapter_config.json");
  WriteTextFile(folder_ / "damaged/adapter_model.safetensors", "damaged");
  options.preference.reference = SourceDir() / "tests/golden/decision/qwen3/adapter_mixed";
  refused(options, "adapter_mixed");
  options.preference.reference = folder_ / "damaged";
  refused(options, "adapter_model.safetensors");
  options = Kto("run");
  options.data.eval_dataset = {
      folder_.Write("eval.jsonl",
                    "{\"prompt\": \"Once\", \"completion\": \" a\", \"label\": true}\n"
                    "{\"prompt\": \"Once\", \"completion\": \" b\", \"label\": "
                    "false}\n")};
  refused(options, "one prompt");
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

// Nothing is kept of what was measured of the reference, and the run begins again.
TEST_F(PreferenceRunTest, MayBeStoppedWhileTheReferenceIsMeasured) {
  class StopsEarly : public TrainObserver {
   public:
    void OnReference(std::int64_t, std::int64_t) override { measures_ = true; }
    bool ShouldStop() override { return measures_; }

   private:
    bool measures_ = false;
  };
  const std::vector<Json> whole = RunPreference(Options("whole"));
  TrainOptions options = Options("parts");
  {
    Context context(2);
    StopsEarly observer;
    EXPECT_TRUE(Train(context, PlanTraining(context, options), observer).interrupted);
  }
  options.overwrite_output_dir = false;
  options.resume_from_checkpoint = "auto";
  const std::vector<Json> parts = RunPreference(options);
  ASSERT_EQ(parts.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(parts[i]["loss"], whole[i]["loss"]);
}

TEST_F(PreferenceRunTest, AnotherLossIsRefusedOnResume) {
  TrainOptions options = Options("run");
  RunPreference(options);
  options.overwrite_output_dir = false;
  options.resume_from_checkpoint = "auto";
  options.max_steps = 4;
  const auto refused = [&](const std::function<void(PreferenceFields&)>& change,
                           const std::string& what) {
    TrainOptions other = options;
    change(other.preference);
    ExpectRefused([&] { RunPreference(other); }, what);
  };
  refused([](PreferenceFields& p) { p.preference_loss = {"hinge"}; }, "preference_loss");
  refused([](PreferenceFields& p) { p.beta = 0.3; }, "beta");
  refused([](PreferenceFields& p) { p.reference = "base"; }, "reference");
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

// What another model has measured is not used, and the run says so.
TEST_F(PreferenceRunTest, ACacheOfAnotherModelIsMeasuredAnew) {
  class Listens : public TrainObserver {
   public:
    void OnWarning(const std::string& text) override { said += text + "\n"; }
    std::string said;
  };
  const auto resumed = [&](const std::string& kernels) {
    TrainOptions options = Options("run");
    options.save_steps = 1;
    options.max_steps = 1;
    RunPreference(options);
    const fs::path file = folder_ / "run/reference_logps.json";
    Json cache = Json::parse(ReadTextFile(file));
    if (!kernels.empty()) {
      cache["model"]["kernels"] = kernels;
      for (Json& logps : cache["logps"]) logps = {-1.5, -2.5};
      WriteTextFile(file, cache.dump());
    }
    options.overwrite_output_dir = false;
    options.resume_from_checkpoint = "auto";
    options.max_steps = 2;
    Context context(2);
    Listens observer;
    Train(context, PlanTraining(context, options), observer);
    const double loss = ReadJsonLines(folder_ / "run/train_log.jsonl").back()["loss"].get<double>();
    return std::pair(observer.said, loss);
  };
  const auto [nothing, expected] = resumed("");
  const auto [said, loss] = resumed("abacus");
  EXPECT_EQ(nothing, "");
  EXPECT_THAT(said, testing::AllOf(testing::HasSubstr("reference_logps.json"),
                                   testing::HasSubstr("measured anew: kernels"),
                                   testing::HasSubstr("abacus")));
  EXPECT_NEAR(loss, expected, 1e-5);
}

TEST_F(PreferenceRunTest, ADamagedCacheIsRefused) {
  TrainOptions options = Options("run");
  options.save_steps = 1;
  options.max_steps = 2;
  RunPreference(options);
  options.overwrite_output_dir = false;
  options.resume_from_checkpoint = "auto";
  options.max_steps = 3;
  WriteTextFile(folder_ / "run/reference_logps.json", "{");
  try {
    RunPreference(options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("reference_logps.json"));
    EXPECT_THAT(error.what(), testing::HasSubstr("remove it"));
  }
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

TEST_F(PreferenceRunTest, BadRecordsAreNamedWithTheirLine) {
  const auto refused = [&](const std::string& lines, const std::string& loss,
                           const std::string& what) {
    TrainOptions options = Options("bad");
    options.preference.preference_loss = {loss};
    options.data.dataset = {folder_.Write("bad.jsonl", lines)};
    SCOPED_TRACE(lines);
    ExpectRefused([&] { RunPreference(options); }, what);
    EXPECT_FALSE(fs::exists(folder_ / "bad"));
  };
  const std::string good = R"({"prompt": "Once", "chosen": " upon", "rejected": " a"})"
                           "\n";
  refused(good + R"({"prompt": "Once", "chosen": " upon"})"
                 "\n",
          "sigmoid", "bad.jsonl:2");
  refused(good + R"({"prompt": "Once", "chosen": "", "rejected": " a"})"
                 "\n",
          "sigmoid", "bad.jsonl:2");
  refused(R"({"prompt": "Once", "completion": " a", "label": true})"
          "\n",
          "sigmoid", "label");
  refused(R"({"prompt": "Once", "completion": " a", "label": 7})"
          "\n",
          "kto", "bad.jsonl:1");
  refused(R"({"prompt": "Once", "chosen": " a", "rejected": " a"})"
          "\n",
          "sigmoid", "two equal answers");
  refused(R"({"prompt_ids": [1, 5], "chosen_ids": [99999, 2], "rejected_ids": [7, 2]})"
          "\n",
          "sigmoid", "bad.jsonl:1");
  refused(R"({"prompt": "Once", "completion": " a", "label": true})"
          "\n"
          R"({"prompt": "Two", "completion": " b", "label": true})"
          "\n",
          "kto", "desirable and undesirable");
  // KTO compares answers to different prompts.
  refused(R"({"prompt": "Once", "completion": " a", "label": true})"
          "\n"
          R"({"prompt": "Once", "completion": " b", "label": false})"
          "\n",
          "kto", "one prompt");
}

TEST_F(PreferenceRunTest, OptionsWithoutEffectAreRefused) {
  const auto refused = [&](const std::function<void(TrainOptions&)>& change,
                           const std::string& what) {
    TrainOptions options = Options("run");
    change(options);
    ExpectRefused([&] { RunPreference(options); }, what);
  };
  using O = TrainOptions;
  const auto use = [](O& o, const char* loss) { o.preference.preference_loss = {loss}; };
  for (const char* loss : {"hinge", "ipo", "simpo", "kto", "orpo"}) {
    refused([&](O& o) { use(o, loss), o.label_smoothing_factor = 0.1; }, "label_smoothing_factor");
  }
  refused([&](O& o) { use(o, "orpo"), o.preference.reference = "base"; }, "reference");
  refused([&](O& o) { o.preference.simpo_gamma = 0.5; }, "simpo_gamma");
  refused([&](O& o) { o.preference.desirable_weight = 2; }, "desirable_weight");
  refused([&](O& o) { use(o, "kto"), o.preference.ld_alpha = 0.5; }, "ld_alpha");
  refused([&](O& o) { o.preference.loss_weights = {"1", "2"}; }, "loss_weights");
  refused([&](O& o) { o.preference.beta = -1; }, "beta");
  refused([&](O& o) { o.label_smoothing_factor = 0.5; }, "label_smoothing");
  refused([&](O& o) { o.preference.ld_alpha = 1.5; }, "ld_alpha");
  refused([&](O& o) { use(o, "sigmod"); }, "sigmoid");
  refused([&](O& o) { o.preference.preference_loss = {"sigmoid", "kto"}; }, "kto");
  refused([&](O& o) { o.preference.preference_loss = {"sft"}; }, "sft");
  refused([&](O& o) { o.neftune_noise_alpha = 5; }, "neftune_noise_alpha");
  refused([&](O& o) { o.lora_dropout = 0.1; }, "lora_dropout");
  refused([&](O& o) { o.data.reading.max_length = 4; }, "max_length");
  refused([&](O& o) { o.data.reading.train_on_inputs = true; }, "train_on_inputs");
  refused([&](O& o) { o.preference.preference_loss.clear(), o.preference.beta = 0.2; }, "beta");
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
