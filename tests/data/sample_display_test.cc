#include "data/sample_display.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/data_test_util.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class SampleDisplayTest : public testing::Test {
 protected:
  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder folder_;
};

TEST_F(SampleDisplayTest, ShowsWhatIsTrained) {
  const Sample sample = {.ids = Join({{kBos}, Bytes("Q\xC3\xA9\nA\x1B[2Jz"), {kEos}}),
                         .labels = Join({Masked(5), Bytes("A\x1B[2Jz"), {kEos}})};
  EXPECT_EQ(RenderSample(sample, tokenizer_, false), "<s>Q\xC3\xA9\n[A\\x1b[2Jz</s>]");
  EXPECT_EQ(RenderSample(sample, tokenizer_, true),
            "\x1b[90m<s>Q\xC3\xA9\n\x1b[0m\x1b[32mA\\x1b[2Jz</s>\x1b[0m");
  const Sample all = {.ids = {kBos, kAb}, .labels = {kBos, kAb}};
  EXPECT_EQ(RenderSample(all, tokenizer_, false), "<s>[ab]") << "nothing predicts the first token";
}

TEST_F(SampleDisplayTest, BranchesStandInLinesOfTheirOwn) {
  // "Q" and "?" begin both answers, the latter again in each branch.
  const Sample pair = {.ids = Join({{kBos}, Bytes("Q"), Bytes("?x"), Bytes("?yz")}),
                       .labels = Join({Masked(3), Bytes("x"), Masked(1), Bytes("yz")}),
                       .branches = {2, 4}};
  EXPECT_EQ(RenderSample(pair, tokenizer_, false), "<s>Q\n| ?[x]\n| ?[yz]");
  EXPECT_EQ(RenderSample({.ids = Bytes("ab"), .labels = Masked(2), .branches = {0, 1}}, tokenizer_,
                         false),
            "| a\n| b");
}

TEST_F(SampleDisplayTest, ChoicesAreShownBehindTheirPrompt) {
  const std::int32_t a = Bytes("A")[0];
  const std::int32_t b = Bytes("B")[0];
  const Sample asked = {.ids = Join({{kBos}, Bytes("s\n1\n2\n")}),
                        .labels = Masked(7),
                        .branches = {3, 5},
                        .choices = {{4, 0, {a, b}, {0, 1}}, {6, 0, {a, b}, {0.25, 0.75}}}};
  EXPECT_EQ(RenderSample(asked, tokenizer_, false), "<s>s\n| 1\n[B]\n| 2\n[A 0.25, B 0.75]");
}

// Of both pairs two tokens of the prompt are shared (BOS and "Q"), and "?" is in both branches.
TEST_F(SampleDisplayTest, PairsHaveLengthsAndSharedRows) {
  DataOptions options =
      folder_.With("d.jsonl",
                   "{\"prompt\": \"Q?\", \"chosen\": \"xy\", \"rejected\": \"z\"}\n"
                   "{\"prompt\": \"Q?\", \"chosen\": \"x\", \"rejected\": \"zzzz\"}\n");
  options.preference.form = PreferenceForm::kPairs;
  const Dataset data = Dataset::Open(options, tokenizer_, nullptr);
  const OrderedJson pairs = PairsToJson(data);
  EXPECT_EQ(pairs["chosen_tokens"], 2.5) << "with EOS";
  EXPECT_EQ(pairs["rejected_tokens"], 3.5);
  // 2 + (1 + 3) + (1 + 2) and 2 + (1 + 2) + (1 + 5) rows, apart 2 more each.
  EXPECT_NEAR(pairs["saved_rows"], 1 - 20.0 / 24, 1e-12);
  EXPECT_THAT(RenderPairs(data), HasSubstr("2.5 tokens are trained of a chosen one, 3.5 of a "
                                           "rejected one (-1.0); shared prompts save 17 %"));
  const OrderedJson parts = SamplesToJson(data, tokenizer_, 1)[0]["parts"];
  EXPECT_FALSE(parts[0].contains("branch"));
  EXPECT_EQ(parts[1]["branch"], 0);
  EXPECT_EQ(parts.back()["branch"], 1);
}

TEST(DatasetReport, WarnsWhenMoreThanATenthIsLost) {
  DataReport report;
  EXPECT_EQ(WarnOfLostRecords(report), "") << "nothing is lost of nothing";
  report.files.resize(2);
  report.files[0].records = report.files[0].found = 60;
  report.files[1].records = report.files[1].found = 40;
  report.max_length = 512;
  report.longest_record = 3071;
  report.dropped_long = 10;
  EXPECT_EQ(WarnOfLostRecords(report), "") << "a tenth";
  report.dropped_long = 11;
  EXPECT_EQ(
      WarnOfLostRecords(report),
      "11 of 100 records (11 %) are dropped or cut: 11 are dropped for having more "
      "than 512 tokens (raise max_length, the longest has 3071 tokens; or cut them with over_long "
      "truncate)");
  report.dropped_long = 0;
  report.truncated = 70;
  report.dropped_masked = 9;
  report.dropped_untrained = 1;
  EXPECT_EQ(WarnOfLostRecords(report),
            "80 of 100 records (80 %) are dropped or cut: 70 are cut to 512 tokens (raise "
            "max_length, the longest has 3071 tokens); 9 are dropped because the cut to 512 tokens "
            "leaves no trained token (raise max_length, the longest has 3071 tokens); 1 is dropped "
            "because no token is trained on (all are masked; train_on_inputs trains on prompts "
            "too)");
  EXPECT_THAT(WarnOfLostRecords(report, "evaluation records"),
              StartsWith("80 of 100 evaluation records (80 %) are dropped or cut: "));
}

TEST(TrainingDataReport, WarnsWhenEvaluationSamplesAreTrainedOn) {
  TrainingDataReport report;
  EXPECT_EQ(WarnOfSharedSamples(report), "") << "nothing is held out";
  report.held_out.emplace().samples = 10;
  report.shared = 4;
  EXPECT_EQ(WarnOfSharedSamples(report), "");
  report.shared = 5;
  EXPECT_THAT(WarnOfSharedSamples(report),
              StartsWith("5 of 10 evaluation samples are also in the training data: "));
  EXPECT_THAT(WarnOfSharedSamples(report), HasSubstr("val_set_size"));
  report.is_split = true;
  EXPECT_THAT(WarnOfSharedSamples(report), testing::EndsWith("hold duplicates; remove them"));
}

TEST_F(SampleDisplayTest, ReportCountsWhatWasLeftOut) {
  DataOptions options = folder_.With(
      "d.jsonl",
      "{\"prompt\": \"Q\", \"completion\": \"A\"}\n{\"prompt\": \"Q\", \"completion\": \"A\"}\n"
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"12345678\", \"completion\": "
      "\"9\"}\n");
  options.max_length = 8;
  options.sources[0].weight = 2;
  const Dataset data = Dataset::Open(options, tokenizer_, nullptr);
  const std::string view = RenderSamples(data, tokenizer_, 2, false) + RenderReport(data.report());
  const std::string file = options.sources[0].path.string();
  EXPECT_THAT(view, HasSubstr("d.jsonl:1: 4 tokens, 2 trained\n<s>Q[A</s>]\n"));
  EXPECT_THAT(view, HasSubstr("format prompt_completion, 3 of 4 records kept, weight 2\n"));
  EXPECT_THAT(view, HasSubstr("samples 3, tokens 12, trained tokens 6 (50.0 %)\n"));
  EXPECT_THAT(view, HasSubstr("lengths 4 to 4, mean 4.0, max_length 8\n"));
  EXPECT_THAT(
      view,
      HasSubstr("samples dropped, longer than max_length (raise it, or cut them with over_long: "
                "truncate): 1, the first " +
                file + ":4\n"));
  EXPECT_THAT(view, HasSubstr("tokens of the longest record: 11\n"));
  EXPECT_THAT(view, HasSubstr("in conversations, the chat template decides): 1\n"));
  EXPECT_THAT(view, HasSubstr("duplicates: 1 (33.3 %), the first " + file + ":2\n"));
  EXPECT_THAT(view, Not(HasSubstr("d.jsonl:3")));
  EXPECT_THAT(view, Not(HasSubstr("samples cut")));
  EXPECT_THAT(RenderSamples(data, tokenizer_, 1, true), HasSubstr("\x1b[32mtrained"));

  const OrderedJson shown = SamplesToJson(data, tokenizer_, 2);
  ASSERT_EQ(shown.size(), 2U);
  EXPECT_THAT(shown[0].at("place"), testing::EndsWith("d.jsonl:1"));
  EXPECT_EQ(shown[0].at("ids"), data.Get(0).ids);
  EXPECT_EQ(shown[0].at("labels"), data.Get(0).labels);
  EXPECT_EQ(shown[0].at("parts"), OrderedJson::parse(R"([{"trained": false, "text": "<s>Q"},
                                                         {"trained": true, "text": "A</s>"}])"));

  const OrderedJson json = ReportToJson(data.report());
  EXPECT_EQ(json.at("samples"), 3);
  EXPECT_EQ(json.at("trained_tokens"), 6);
  EXPECT_EQ(json.at("dropped_long"), 1);
  EXPECT_EQ(json.at("first_places"),
            OrderedJson({{"dropped_long", file + ":4"}, {"duplicates", file + ":2"}}));
  EXPECT_EQ(json.at("files")[0].at("records"), 4);
}

TEST_F(SampleDisplayTest, TellsTheLongestSequenceOfSamplesThatAreSeveral) {
  // Behind a common token pairs of 4 and 3, and of 3 and 7 tokens.
  DataOptions options =
      folder_.With("d.jsonl",
                   "{\"prompt\": \"Q\", \"chosen\": \"xy\", \"rejected\": \"c\"}\n"
                   "{\"prompt\": \"Q\", \"chosen\": \"a\", \"rejected\": \"bcdef\"}\n");
  options.preference.form = PreferenceForm::kPairs;
  const DataReport report = Dataset::Open(options, tokenizer_, nullptr).report();
  EXPECT_THAT(
      RenderReport(report),
      HasSubstr(fmt::format("lengths 8 to 11, mean 9.5, max_length {} (longest sequence 8)\n",
                            options.max_length)));
  EXPECT_EQ(ReportToJson(report).at("largest"), 11);
  EXPECT_EQ(ReportToJson(report).at("longest"), 8);
}

TEST_F(SampleDisplayTest, TellsWhatIsHeldOutAndHowFullPackingIs) {
  DataFields fields;
  fields.dataset = {folder_
                        .Write("t.jsonl",
                               "{\"text\": \"12345\"}\n{\"text\": \"67\"}\n"
                               "{\"text\": \"x\"}\n")
                        .path};
  fields.eval_dataset = {folder_
                             .Write("e.jsonl",
                                    "{\"text\": \"67\"}\n{\"text\": \"8\"}\n"
                                    "{\"text\": \"far too long for this\"}\n")
                             .path};
  fields.reading.max_length = 8;
  const TrainingData data = OpenTrainingData(fields, {}, 1, tokenizer_, nullptr, nullptr);
  // 7, 4 and 3 tokens in rows of 8.
  const StreamOptions stream{.per_device_train_batch_size = 1, .max_length = 8, .packing = true};
  const TrainingDataReport report = ReportTrainingData(data.train, data.held_out, stream);
  const std::string text = RenderTrainingData(report);
  EXPECT_THAT(text, HasSubstr("packing: 2 micro-batches of up to 8 tokens, 87.5 % full\n"));
  EXPECT_THAT(text, HasSubstr("held out for evaluation\n"));
  EXPECT_THAT(text, HasSubstr("truncate): 1, the first ")) << "of the held-out file";
  EXPECT_THAT(text, HasSubstr("evaluation samples that are also in the training data: 1\n"));
  const OrderedJson json = TrainingDataToJson(report);
  EXPECT_EQ(json.at("packing").at("fill_rate"), 0.875);
  EXPECT_EQ(json.at("held_out").at("dropped_long"), 1);
  EXPECT_EQ(json.at("held_out").at("also_trained_on"), 1);

  const auto rendered = [](const TrainingData& opened) {
    return RenderTrainingData(ReportTrainingData(opened.train, opened.held_out, {}));
  };
  EXPECT_THAT(rendered(data), Not(HasSubstr("packing")));
  fields.dataset[0] += ":0";
  const TrainingData never = OpenTrainingData(fields, {}, 1, tokenizer_, nullptr, nullptr);
  ExpectRefused([&] { rendered(never); }, "weight of a data file");
  fields.dataset[0].resize(fields.dataset[0].size() - 2);
  fields.val_set_size = 0.5;
  ExpectRefused([&] { OpenTrainingData(fields, {}, 1, tokenizer_, nullptr, nullptr); },
                "val_set_size");
  fields.eval_dataset.clear();
  const TrainingData split = OpenTrainingData(fields, {}, 1, tokenizer_, nullptr, nullptr);
  EXPECT_EQ(split.train.size() + split.held_out->size(), 3);
  EXPECT_THAT(rendered(split), Not(HasSubstr("also in the training data")));
}

TEST_F(SampleDisplayTest, HistogramCountsEverySampleOnce) {
  DataReport report;
  CountLengths({1, 10, 11, 20, 21, 155}, 16, report);
  EXPECT_EQ(report.bucket_width, 10);
  ASSERT_EQ(report.buckets.size(), 16U);
  EXPECT_EQ(report.buckets[0], 2);
  EXPECT_EQ(report.buckets[1], 2);
  EXPECT_EQ(report.buckets[2], 1);
  EXPECT_EQ(report.buckets[15], 1);
  CountLengths({3, 3}, 16, report);
  EXPECT_EQ(report.bucket_width, 1);
  EXPECT_EQ(report.buckets, (std::vector<std::int64_t>{0, 0, 2}));
  CountLengths({170}, 16, report);
  EXPECT_EQ(report.bucket_width, 20);
  CountLengths({2048}, 16, report);
  EXPECT_EQ(report.bucket_width, 200);
  CountLengths({800}, 16, report);
  EXPECT_EQ(report.bucket_width, 50);
}

}  // namespace
}  // namespace qlora
