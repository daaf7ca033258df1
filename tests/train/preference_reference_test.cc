// The reference that preferences are measured against: which it is, how it is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/file.h"
#include "io/test_util.h"
#include "train/preference_run.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

using PreferenceReferenceTest = PreferenceRunTest;

TEST_F(PreferenceReferenceTest, TheFirstRewardsAreZero) {
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
TEST_F(PreferenceReferenceTest, LabelsAreMeasuredAgainstTheReference) {
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
TEST_F(PreferenceReferenceTest, TheReferenceMayBeAnotherKindOfAdapter) {
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

TEST_F(PreferenceReferenceTest, AReferenceThatIsTheAdapterOfTheRunIsNamed) {
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

// Nothing is kept of what was measured of the reference, and the run begins again.
TEST_F(PreferenceReferenceTest, MayBeStoppedWhileTheReferenceIsMeasured) {
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

// What was measured by another model, or of other data, is not used, and the run says so.
TEST_F(PreferenceReferenceTest, ACacheOfAnotherModelOrOtherDataIsMeasuredAnew) {
  class Listens : public TrainObserver {
   public:
    void OnWarning(const std::string& text) override { said += text + "\n"; }
    std::string said;
  };
  const auto resumed = [&](const std::string& key) {
    TrainOptions options = Options("run");
    options.save_steps = 1;
    options.max_steps = 1;
    RunPreference(options);
    const fs::path file = folder_ / "run/reference_logps.json";
    Json cache = Json::parse(ReadTextFile(file));
    if (!key.empty()) {
      cache["model"][key] = "abacus";
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
  EXPECT_EQ(nothing, "");
  for (const auto& [key, what] :
       {std::pair("kernels", "measured anew: kernels"),
        {"dataset_fingerprint", "measured anew: the samples of dataset"}}) {
    const auto [said, loss] = resumed(key);
    EXPECT_THAT(
        said, testing::AllOf(testing::HasSubstr("reference_logps.json"), testing::HasSubstr(what)));
    EXPECT_NEAR(loss, expected, 1e-5);
  }
}

TEST_F(PreferenceReferenceTest, ADamagedCacheIsRefused) {
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

}  // namespace
}  // namespace qlora
