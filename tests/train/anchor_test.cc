// Runs that an anchor keeps near their base.
#include <gmock/gmock.h>

#include <cmath>

#include "plan/run/prepared_run.h"
#include "train/step_time.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class AnchorTest : public TinyRunTest {
 protected:
  static constexpr const char* kTexts =
      "{\"text\": \"Once upon a time there was a little house by the sea.\"}\n"
      "{\"text\": \"The cat sat on the mat and looked at the moon.\"}\n"
      "{\"text\": \"It rained, and nobody went out.\"}\n";
  static constexpr const char* kOtherTexts =
      "{\"text\": \"A dog ran over the hill and into the wood.\"}\n"
      "{\"text\": \"They had bread and soup, and were glad.\"}\n";

  // A run with an anchor.
  TrainOptions Anchored(const std::string& name, const std::string& text = kTexts) {
    TrainOptions options = Options(name);
    options.anchor = {folder_.Write(name + "-anchor.jsonl", text)};
    options.anchor_tokens = 64;
    options.warmup_ratio = 0;  // the first step trains
    return options;
  }
  double AnchorKl(const std::string& name, std::int64_t step) const {
    return Json::parse(Steps(name)[step])["anchor_kl"].get<double>();
  }
  // The divergence of a trained adapter from the base, on texts that no run has seen.
  double HeldOutKl(const std::string& adapter) {
    TrainOptions options = Anchored(adapter + "-measured", kOtherTexts);
    options.adapter = root_ / adapter;
    options.lora_r = TrainOptions().lora_r;
    options.lora_dropout = TrainOptions().lora_dropout;
    options.learning_rate = 0;
    options.max_steps = 1;
    Run(options);
    return AnchorKl(adapter + "-measured", 0);
  }
};

// With B = 0 the adapter changes no bit of the logits.
TEST_F(AnchorTest, TheFirstDivergenceIsZeroInEveryFamily) {
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    const std::string family = entry.path().filename();
    if (!family.ends_with("-tiny")) continue;
    SCOPED_TRACE(family);
    TrainOptions options = Anchored(family);
    options.model_name_or_path = entry.path();
    options.max_steps = 2;
    options.neftune_noise_alpha = 5;
    Run(options);
    EXPECT_EQ(AnchorKl(family, 0), 0);
    EXPECT_GT(AnchorKl(family, 1), 0);
  }
}

TEST_F(AnchorTest, GoesWithEveryObjective) {
  const auto expect_anchor = [&](const std::string& name, const Change& change, double first = 0) {
    SCOPED_TRACE(name);
    TrainOptions options = Anchored(name);
    change(options);
    options.max_steps = 2;
    Run(options);
    EXPECT_NEAR(AnchorKl(name, 0), 0, first);
    EXPECT_GT(AnchorKl(name, 1), first);
  };
  const auto preference = [](TrainOptions& o, const char* file, const char* loss) {
    o.model_name_or_path = kGolden / "preference" / "stories260K-hf";
    o.data.dataset = {kGolden / "preference" / file};
    o.data.reading.max_length = 192;
    o.lora_dropout = 0;
    o.preference.preference_loss = {loss};
  };
  expect_anchor("pairs", [&](TrainOptions& o) { preference(o, "pairs.jsonl", "sigmoid"); });
  expect_anchor("labels", [&](TrainOptions& o) { preference(o, "unpaired.jsonl", "kto"); });
  expect_anchor("decisions", [](TrainOptions& o) {
    o.model_name_or_path = kGolden / "decision" / "tiny-qwen3";
    o.data.dataset = {kGolden / "decision" / "qwen3" / "train.jsonl"};
    o.data.reading.max_length = 0;
    o.data.reading.decision.decision_template = "plain";
    o.lora_dropout = 0;
  });
  expect_anchor("packed", [](TrainOptions& o) { o.data.packing = true; });
  // The lengths of DoRA round: a logit of size s and its divergence err by some roundings of s, for
  // which 100 with s = 10 leave room in float32.
  expect_anchor(
      "dora", [](TrainOptions& o) { o.use_dora = true; }, 100 * 10 * 0x1p-24);
  expect_anchor("rslora", [](TrainOptions& o) { o.use_rslora = true; });
  expect_anchor("modules", [](TrainOptions& o) {
    o.modules_to_save = {"embed_tokens", "lm_head"};
  });
}

// An anchor whose gradient is 0 in the first step changes nothing of it.
TEST_F(AnchorTest, TheLossIsThatOfTheObjective) {
  Run(Options("plain"));
  Run(Anchored("anchored"));
  const Json plain = Json::parse(Steps("plain")[0]);
  const Json anchored = Json::parse(Steps("anchored")[0]);
  for (const char* key : {"loss", "grad_norm", "tokens"})
    EXPECT_EQ(plain[key], anchored[key]) << key;
  EXPECT_NE(Steps("plain")[2], Steps("anchored")[2]);
}

TEST_F(AnchorTest, EvaluationsKnowNoAnchor) {
  TrainOptions options = Anchored("evaluated");
  options.data.eval_dataset = options.data.dataset;
  options.max_steps = 1;
  Run(options);
  const std::string log = ReadTextFile(root_ / "evaluated" / "eval_log.jsonl");
  EXPECT_THAT(log, testing::HasSubstr("eval_loss"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("anchor_kl")));
}

TEST_F(AnchorTest, AWeightKeepsTheModelNearItsBaseOnOtherTexts) {
  for (const char* name : {"free", "held"}) {
    TrainOptions options = Anchored(name);
    options.anchor_weight = name == std::string("held") ? 10 : 1e-9;
    options.max_steps = 30;
    Run(options);
  }
  EXPECT_LT(HeldOutKl("held"), 0.5 * HeldOutKl("free"));
}

TEST_F(AnchorTest, AResumedRunIsAnUnbrokenOne) {
  TrainOptions options = Anchored("whole");
  options.anchor_tokens = 32;  // the texts are several micro-batches
  Run(options);
  for (const std::int64_t stop : {1, 5}) {
    options.output_dir = root_ / ("parts" + std::to_string(stop));
    options.resume_from_checkpoint.clear();
    Run(options, stop);
    options.resume_from_checkpoint = "auto";
    Run(options);
    const std::string name = fs::path(options.output_dir).filename();
    EXPECT_EQ(Steps("whole"), Steps(name)) << stop;
    EXPECT_TRUE(Adapter("whole") == Adapter(name)) << stop;
  }
}

TEST_F(AnchorTest, AResumedRunHasTheSameTexts) {
  TrainOptions options = Anchored("run");
  Run(options, 2);
  options.resume_from_checkpoint = "auto";
  TrainOptions other = options;
  other.anchor = {folder_.Write("other.jsonl", kOtherTexts)};
  ExpectRefused(other, "the texts of anchor");
  other.anchor.clear();
  other.anchor_tokens = TrainOptions().anchor_tokens;
  ExpectRefused(other, "the texts of anchor");
  other = options;
  other.anchor = {options.anchor.front() + ":2"};
  ExpectRefused(other, "the texts of anchor or their weights");
  other.anchor = {folder_.Write("moved.jsonl", kTexts)};
  Run(other);
}

TEST_F(AnchorTest, RefusesWhatIsNoAnchor) {
  const auto refused = [&](const Change& change, const std::string& why) {
    TrainOptions options = Anchored("refused");
    change(options);
    ExpectRefused(options, why);
    EXPECT_FALSE(fs::exists(options.output_dir));
  };
  using O = TrainOptions;
  refused([](O& o) { o.anchor_weight = 0; }, "anchor_weight");
  refused([](O& o) { o.anchor_weight = NAN; }, "anchor_weight");
  refused([](O& o) { o.anchor_tokens = 1; }, "anchor_tokens");
  refused([](O& o) { o.anchor = {"no-such.jsonl"}; }, "no-such.jsonl");
  for (const char* name : {"empty.jsonl", "empty.txt"}) {
    const std::string empty = folder_.Write(name, "");
    refused([&](O& o) { o.anchor = {empty}; },
            empty + ": the data file is empty; expected records or text: name a file");
  }
  const auto without = [&](const Change& change, const std::string& why) {
    refused([&](O& o) { o.anchor.clear(), o.anchor_tokens = O().anchor_tokens, change(o); }, why);
  };
  without([](O& o) { o.anchor_weight = 2; }, "anchor_weight would have no effect");
  without([](O& o) { o.anchor_tokens = 7; }, "anchor_tokens would have no effect");
  const std::string question = folder_.Write(
      "question.jsonl",
      R"({"state": "The lamp is on.", "type": "noul", "instructions": "Is it dark?", "answer": "no"})"
      "\n");
  refused([&](O& o) { o.anchor = {question}; }, "question.jsonl");
}

// A step whose texts are all of the data takes as much arithmetic as the run counts for it.
TEST_F(AnchorTest, TheShareOfTheLimitIsThatOfTheArithmeticOfAStep) {
  constexpr double kPeak = 1e9;
  constexpr double kSeconds = 2;
  for (const bool anchors : {true, false}) {
    TrainOptions options = Anchored(anchors ? "with" : "without");
    options.data.dataset = options.anchor;
    options.per_device_train_batch_size = 3;
    options.gradient_accumulation_steps = 1;
    options.anchor_tokens = 512;
    if (!anchors) {
      options.anchor.clear();
      options.anchor_tokens = TrainOptions().anchor_tokens;
    }
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    const std::int64_t tokens = plan.run->data->train.report().tokens;
    const double share = StepLimit(plan, {kPeak, kPeak, kPeak})
                             .ShareOf({.supervised = tokens, .rows = tokens}, kSeconds);
    const double flops = RemainingFlops(plan).sum() / static_cast<double>(plan.total_steps);
    EXPECT_NEAR(share * kPeak * kSeconds, flops, 1e-12 * flops) << anchors;
  }
}

// The same three texts are trained on and are the anchor of each step.
TEST_F(AnchorTest, TheTimeOfARunCountsTheAnchor) {
  const auto flops = [](const TrainOptions& options) {
    Context context(1);
    return RemainingFlops(PlanTraining(context, options)).sum();
  };
  TrainOptions options = Anchored("timed");
  options.data.dataset = options.anchor;
  options.anchor_tokens = 512;
  options.per_device_train_batch_size = 3;
  options.gradient_accumulation_steps = 1;
  const double both = flops(options);
  options.anchor.clear();
  options.anchor_tokens = TrainOptions().anchor_tokens;
  EXPECT_NEAR(both, 2.5 * flops(options), 1e-9 * both);
}

TEST_F(AnchorTest, WarnsOfTextsThatAreLost) {
  const auto warnings = [](const TrainOptions& options) {
    Context context(1);
    return PlanTraining(context, options).warnings;
  };
  TrainOptions options = Anchored("lost", std::string(kTexts) + "{\"text\": [\"a\"]}\n");
  options.data.reading.bad_records = "drop";
  EXPECT_THAT(warnings(options), testing::Contains(testing::HasSubstr(
                                     "1 of 4 anchor records (25 %) is dropped or cut: 1 is dropped "
                                     "as unreadable")));
  options = Anchored("cut");
  options.anchor_tokens = 8;
  EXPECT_THAT(warnings(options), testing::Not(testing::Contains(testing::HasSubstr("anchor"))));
}

// The longest texts are cut, and the plan has room for the anchor.
TEST_F(AnchorTest, ThePlanHasRoomForTheAnchor) {
  const auto peak = [&](const TrainOptions& options) {
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    EXPECT_EQ(plan.data.anchors->files.front().samples, 3);
    return plan.memory.train_peak;
  };
  TrainOptions options = Anchored("plan");
  options.data.reading.max_length = 16;
  options.data.reading.over_long = "truncate";
  options.per_device_train_batch_size = 1;
  const std::size_t small = peak(options);
  options.anchor_tokens = 4096;
  EXPECT_GT(peak(options), small + (4096 - 64) * 4 * 64);
}

}  // namespace
}  // namespace qlora
