// `qlora eval` of preferences: the figures of a run's own evaluation, from its adapter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>

#include "base/file.h"
#include "io/test_util.h"
#include "qlora/model.h"
#include "train/preference_run.h"

namespace qlora {
namespace {

class PreferenceEvalTest : public testing::Test {
 protected:
  static ModelOptions Trained(const std::string& adapter) {
    ModelOptions options;
    options.model_name_or_path = PreferenceGoldens() / "stories260K-hf";
    options.compute_dtype = "float32";
    options.quantization.bnb_4bit_use_double_quant = false;
    if (!adapter.empty()) options.adapter = {adapter};
    return options;
  }
  static EvalResult Evaluate(const EvalOptions& options, const std::string& adapter) {
    Context context(2);
    return Model::Load(context, Trained(adapter)).Evaluate(options);
  }

  // Trains three steps, and compares the last evaluation with that of the adapter.
  void ExpectSame(const std::function<void(TrainOptions&)>& change,
                  const std::string& reference = "base") const {
    TrainOptions train = PreferenceOptions(folder_ / "run");
    train.data.eval_dataset = {PreferenceGoldens() / "eval_pairs.jsonl"};
    train.max_steps = 3;
    change(train);
    RunPreference(train);
    const Json expected = ReadJsonLines(folder_ / "run/eval_log.jsonl").back();
    EvalOptions eval;
    eval.dataset = train.data.eval_dataset;
    eval.reading = train.data.reading;
    eval.preference = train.preference;
    eval.preference.reference = PreferenceFields().reference;
    eval.label_smoothing_factor = train.label_smoothing_factor;
    eval.reference = reference;
    const EvalResult found = Evaluate(eval, folder_ / "run");
    EXPECT_EQ(found.loss, expected["eval_loss"].get<double>());
    EXPECT_EQ(found.tokens, expected["eval_tokens"].get<std::int64_t>());
    EXPECT_GE(found.metrics.size(), 8u);
    for (const MetricValue& metric : found.metrics) {
      EXPECT_EQ(metric.value, expected["eval_" + metric.name].get<double>()) << metric.name;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(PreferenceEvalTest, PairsHaveTheFiguresOfTheRun) {
  ExpectSame([](TrainOptions& o) {
    o.adapter.clear();
    o.preference.beta = 0.2;
    o.preference.ld_alpha = 0.5;
    o.label_smoothing_factor = 0.1;
  });
  ExpectSame([](TrainOptions& o) {
    o.preference.preference_loss = {"ipo", "sft"};
    o.preference.loss_weights = {"1", "0.5"};
    o.data.reading.decision.share_prefix = false;
  });
}

TEST_F(PreferenceEvalTest, NoReferenceHasThem) {
  ExpectSame([](TrainOptions& o) { o.preference.reference = "none"; }, "none");
}

TEST_F(PreferenceEvalTest, LossesWithoutAReferenceHaveThem) {
  ExpectSame([](TrainOptions& o) { o.preference.preference_loss = {"orpo"}; });
}

TEST_F(PreferenceEvalTest, LabelsHaveThem) {
  ExpectSame([](TrainOptions& o) {
    o.data.dataset = o.data.eval_dataset = {PreferenceGoldens() / "unpaired.jsonl"};
    o.per_device_train_batch_size = 8;
    o.preference.preference_loss = {"kto"};
    o.preference.desirable_weight = 1.33;
  });
}

// An adapter that was continued is not measured against its base, unless the run was.
TEST_F(PreferenceEvalTest, TheReferenceIsTheBaseOrAnotherAdapter) {
  const std::string start = PreferenceGoldens() / "adapter_sft";
  ExpectSame([&](TrainOptions& o) { o.adapter = start, o.preference.reference = "base"; });
  ExpectSame([&](TrainOptions& o) { o.adapter = start; }, start);
}

TEST_F(PreferenceEvalTest, SeveralFilesAreOne) {
  std::string parts[2];
  for (const Json& line : ReadJsonLines(PreferenceGoldens() / "eval_pairs.jsonl")) {
    parts[parts[0].size() > 1000 ? 1 : 0] += line.dump() + "\n";
  }
  const std::string one = folder_.Write("one.jsonl", parts[0]);
  const std::string two = folder_.Write("two.jsonl", parts[1]);
  ExpectSame([&](TrainOptions& o) { o.data.eval_dataset = {one, two}; });
}

// Of whole answers, from ids and from texts.
TEST_F(PreferenceEvalTest, AnswersHaveTheGoldenLogProbabilities) {
  const Json golden = Json::parse(ReadTextFile(PreferenceGoldens() / "ref_logps.json"))["pairs"];
  const std::vector<Json> pairs = ReadJsonLines(PreferenceGoldens() / "pairs.jsonl");
  EvalOptions options;
  options.dataset = {PreferenceGoldens() / "pairs.jsonl"};
  options.preference.preference_loss = {"cpo"};
  options.per_token = true;
  for (const bool texts : {false, true}) {
    if (texts) options.reading.ignore_fields = {"prompt_ids", "chosen_ids", "rejected_ids"};
    for (const char* model : {"base", "sft"}) {
      SCOPED_TRACE(model);
      options.without_adapter = std::string(model) == "base";
      const EvalResult found = Evaluate(options, PreferenceGoldens() / "adapter_sft");
      auto token = found.logprobs.begin();
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        for (const std::string side : {"chosen", "rejected"}) {
          const auto end = token + std::ssize(pairs[i][side + "_ids"]);
          ASSERT_LE(end - found.logprobs.begin(), std::ssize(found.logprobs));
          const double expected = golden[model][side][i];
          EXPECT_NEAR(std::accumulate(token, end, 0.0), expected, 2e-4) << side << " " << i;
          token = end;
        }
      }
    }
  }
}

TEST_F(PreferenceEvalTest, AccuracyOfTokensIsThatOfTheChosenAnswers) {
  std::string chosen;
  for (const Json& pair : ReadJsonLines(PreferenceGoldens() / "eval_pairs.jsonl")) {
    Json ids = pair["prompt_ids"];
    Json labels = Json::array();
    for (std::size_t t = 0; t < ids.size(); ++t) labels.push_back(-100);
    for (const Json& id : pair["chosen_ids"]) {
      ids.push_back(id);
      labels.push_back(id);
    }
    chosen += Json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
  }
  EvalOptions options;
  options.dataset = {folder_.Write("chosen.jsonl", chosen)};
  const double expected = Evaluate(options, "").token_accuracy;
  options.dataset = {PreferenceGoldens() / "eval_pairs.jsonl"};
  options.preference.preference_loss = {"cpo"};
  EXPECT_NEAR(ValueOf(Evaluate(options, "").metrics, "mean_token_accuracy"), expected, 1e-12);
}

// Of two files together, the mean over the tokens of all their answers.
TEST_F(PreferenceEvalTest, EntropyIsAMeanOverTokens) {
  EvalOptions options;
  options.preference.preference_loss = {"cpo"};
  const auto evaluate = [&](std::vector<std::string> files) {
    options.dataset = std::move(files);
    return Evaluate(options, "");
  };
  const std::string pairs = PreferenceGoldens() / "pairs.jsonl";
  const std::string held_out = PreferenceGoldens() / "eval_pairs.jsonl";
  const EvalResult both = evaluate({pairs, held_out});
  double sum = 0;
  for (const std::string& file : {pairs, held_out}) {
    const EvalResult one = evaluate({file});
    sum += static_cast<double>(one.tokens) * ValueOf(one.metrics, "entropy");
  }
  EXPECT_NEAR(ValueOf(both.metrics, "entropy"), sum / static_cast<double>(both.tokens), 1e-5);
}

// Of a prompt that ends in a space, whose last token would be another one before the answer.
TEST_F(PreferenceEvalTest, AnswersBehindASplitBoundaryAreTokensByThemselves) {
  Context context(2);
  Model model = Model::Load(context, Trained(""));
  EvalOptions options;
  options.per_token = true;
  for (const Json& line : ReadJsonLines(PreferenceGoldens() / "boundary.jsonl")) {
    options.dataset = {folder_.Write(
        "one.jsonl", Json{{"prompt", line["prompt"]}, {"completion", line["completion"]}}.dump())};
    std::vector<std::int32_t> expected =
        model.Tokenize(line["completion"].get<std::string>(), false);
    expected.push_back(2);  // EOS
    EXPECT_EQ(model.Evaluate(options).token_ids, expected);
  }
}

TEST_F(PreferenceEvalTest, WhatHasNoEffectIsRefused) {
  const std::string adapter = PreferenceGoldens() / "adapter_sft";
  const auto refused = [&](const std::function<void(EvalOptions&)>& change, const std::string& what,
                           const std::string& with) {
    EvalOptions options;
    options.dataset = {PreferenceGoldens() / "eval_pairs.jsonl"};
    options.preference.preference_loss = {"sigmoid"};
    change(options);
    ExpectRefused([&] { Evaluate(options, with); }, what);
  };
  using O = EvalOptions;
  const auto use = [](O& o, const char* loss) { o.preference.preference_loss = {loss}; };
  const auto drop = [](O& o) { o.preference.preference_loss.clear(); };
  refused([&](O& o) { use(o, "hinge"), o.label_smoothing_factor = 0.1; }, "label_smoothing_factor",
          adapter);
  refused([&](O& o) { drop(o), o.label_smoothing_factor = 0.1; }, "label_smoothing_factor",
          adapter);
  refused([&](O& o) { drop(o), o.preference.beta = 0.2; }, "beta", adapter);
  refused([&](O& o) { drop(o), o.reference = adapter; }, "reference", adapter);
  refused([&](O& o) { use(o, "simpo"), o.reference = adapter; }, "reference", adapter);
  refused([](O& o) { o.reference = "start"; }, "start", adapter);
  refused([](O& o) { o.reading.train_on_inputs = true; }, "train_on_inputs", adapter);
  refused([](O& o) { o.preference.simpo_gamma = 0.5; }, "simpo_gamma", adapter);
  refused([](O&) {}, "compared with itself", "");
  refused([&](O& o) { o.reference = adapter; }, "compared with itself", adapter);
  refused([&](O& o) { o.reference = adapter + "/."; }, "compared with itself", adapter);
}

}  // namespace
}  // namespace qlora
