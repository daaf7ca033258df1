// Runs on preferences that are refused, and those that users are warned of.
#include <algorithm>
#include <functional>
#include <string>

#include "base/file.h"
#include "io/test_util.h"
#include "train/preference_run.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

using PreferenceRefusalsTest = PreferenceRunTest;

TEST_F(PreferenceRefusalsTest, PairsAreNamedWhereNothingIsSaidOfPreferences) {
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

TEST_F(PreferenceRefusalsTest, LengthIsWarnedOfWhereTheLossGrowsWithIt) {
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

// What the run would find only after it has replaced an older one.
TEST_F(PreferenceRefusalsTest, NothingIsReplacedByARunThatCannotBegin) {
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

TEST_F(PreferenceRefusalsTest, AnotherLossIsRefusedOnResume) {
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

TEST_F(PreferenceRefusalsTest, BadRecordsAreNamedWithTheirLine) {
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

TEST_F(PreferenceRefusalsTest, OptionsWithoutEffectAreRefused) {
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
  refused([&](O& o) { use(o, "simpo"), o.preference.reference = "none"; }, "reference");
  refused([&](O& o) { use(o, "kto"), o.preference.reference = "none"; }, "found none");
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

}  // namespace
}  // namespace qlora
