// Samples that are refused, left out or cut, and how they are counted.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "data/dataset_fixture.h"

namespace qlora {
namespace {

using LeftOutSamplesTest = DatasetTest;

TEST_F(LeftOutSamplesTest, RefusesWhatCannotBeTrainedOn) {
  Refuse("{\"text\": \"x\"}\n{\"input_ids\": [5]}\n", "d.jsonl:2: field 'text' is missing");
  Refuse("{\"text\": \"x\"}\n{\"text\": [5]}\n", "d.jsonl:2: field 'text': expected text");
  Refuse("{\"text\": \"x\"}\n\n{\"text\": }\n", "d.jsonl:3:10: malformed JSON");
  Refuse("{\"text\": \"\"}\n", "d.jsonl:1: field 'text' is empty");
  Refuse("{\"input_ids\": [5, 6], \"labels\": [-100, -100]}",
         "d.jsonl:1 (all tokens are masked, or none comes before them)");
  Refuse("{\"input_ids\": [5, 6], \"labels\": [5, -100]}", "have no token that is trained on");
  Refuse("{\"input_ids\": [5]}", "have no token that is trained on");
  Refuse("{\"input_ids\": []}", "have no token that is trained on");
  Refuse("{\"input_ids\": [5, 261]}",
         "token 261 at position 1 is outside of the vocabulary of 261");
  Refuse("{\"input_ids\": [5, -3]}", "token -3");
  Refuse("{\"input_ids\": [5, 6], \"labels\": [5, 261]}", "token 261");
  Refuse("{\"text\": \"<s><s>x\"}", "d.jsonl:1: the sample begins with BOS twice");
  Refuse("{\"input_ids\": [0, 0, 7]}", "BOS twice");
  DataOptions preferred = folder_.With(
      "d.jsonl", R"({"prompt_ids": [0, 0, 7], "chosen_ids": [8, 1], "rejected_ids": [9, 1]})");
  preferred.preference.form = PreferenceForm::kPairs;
  Refuse(preferred, "d.jsonl:1: the sample begins with BOS twice");
  folder_.With("d.jsonl",
               R"({"prompt_ids": [0, 7], "chosen_ids": [8, 1], "rejected_ids": [0, 9]})");
  Refuse(preferred, "d.jsonl:1: the answer begins with BOS (0)");
  preferred.preference.form = PreferenceForm::kLabels;
  folder_.With("d.jsonl", R"({"prompt_ids": [0, 0, 7], "completion_ids": [8, 1], "label": true})");
  Refuse(preferred, "d.jsonl:1: the sample begins with BOS twice");
  folder_.With("d.jsonl", R"({"prompt_ids": [0, 7], "completion_ids": [0, 8], "label": true})");
  Refuse(preferred, "d.jsonl:1: the answer begins with BOS (0)");
  DataOptions asked = folder_.With(
      "d.jsonl", R"({"state": "s", "type": "noul", "instructions": "?", "answer": true})");
  asked.decision.decision_template =
      folder_
          .Write("two.jinja",
                 "<s><s>{{ state }} {{ instructions }}\n"
                 "{% for o in options %}{{ o.label }}. {{ o.key }}\n{% endfor %}\n\n")
          .path.string();
  Refuse(asked, "BOS twice");
  // Nobody knows any answer.
  DataOptions table = folder_.With("d.jsonl",
                                   "{\"text\": \"x\", \"label\": -1}\n"
                                   "{\"text\": \"y\", \"label\": \"-1\"}\n");
  table.sources[0].format = RecordFormat::kDecision;
  table.decision.fields.label_names = {"a", "b"};
  table.decision.fields.instructions = "Which?";
  Refuse(table, "2 have no answer to a question of question_types, the first at ");
  Refuse("{\"question\": 1}", "d.jsonl:1: cannot tell the format from the fields: question");
  Refuse("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "chat template");
  Refuse("\n \n", "empty");
  Refuse(DataOptions(), "no data file");
  DataOptions options = folder_.With("d.jsonl", R"({"text": "xyz"})");
  options.vocab_size = 100;
  Refuse(options, "vocabulary of 100 tokens");
  options.max_length = 1;
  Refuse(options, "max_length");
}

TEST_F(LeftOutSamplesTest, SamplesWithoutATrainedTokenAreLeftOutAndCounted) {
  const Dataset data = Open("d.jsonl",
                            "{\"input_ids\": [5]}\n{\"input_ids\": [5, 6]}\n"
                            "{\"input_ids\": [5, 6], \"labels\": [-100, -100]}\n"
                            "{\"input_ids\": [5, 7]}\n");
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.report().dropped_untrained, 2);
  EXPECT_TRUE(data.Where(1).ends_with("d.jsonl:4"));
  EXPECT_EQ(data.supervised(1), 1);
}

TEST_F(LeftOutSamplesTest, TheFirstDuplicateIsFirstInTheFile) {
  std::string lines;
  for (const char letter : std::string("abcdefgdbaadh")) {
    lines += fmt::format("{{\"text\": \"{}\"}}\n", letter);
  }
  const Dataset data = Open("d.jsonl", lines);
  EXPECT_EQ(data.report().duplicates, 5);
  EXPECT_TRUE(data.report().first_places.at("duplicates").ends_with("d.jsonl:8"));
  const std::vector<std::uint32_t> some = {0, 1, 9, 12};
  EXPECT_EQ(data.Subset(some).report().duplicates, 1);
  EXPECT_TRUE(data.Subset(some).report().first_places.at("duplicates").ends_with("d.jsonl:10"));
  const std::vector<std::uint32_t> distinct = {0, 1, 2};
  EXPECT_EQ(data.Subset(distinct).report().duplicates, 0);
}

TEST_F(LeftOutSamplesTest, OverLongSamplesAreDroppedCutOrRefusedAndCounted) {
  // 5, 9, 4 and 8 tokens
  DataOptions options =
      folder_.With("d.jsonl",
                   "{\"text\": \"xyz\"}\n{\"text\": \"1234567\"}\n{\"text\": \"xy\"}\n"
                   "{\"input_ids\": [0, 9, 9, 9, 9, 9, 9, 9], \"text\": \"123456\"}\n");
  options.sources[0].format = RecordFormat::kText;
  options.max_length = 5;
  const Dataset dropped = Open(options);
  EXPECT_EQ(dropped.size(), 2);
  EXPECT_EQ(dropped.report().dropped_long, 2);
  EXPECT_EQ(dropped.report().longest_record, 9);
  EXPECT_EQ(dropped.report().longest, 5);
  EXPECT_EQ(dropped.Get(1).ids, Join({{kBos}, Bytes("xy"), {kEos}}));
  EXPECT_TRUE(dropped.Where(1).ends_with(":3"));

  options.over_long = OverLong::kTruncate;
  const Dataset cut = Open(options);
  EXPECT_EQ(cut.size(), 4);
  EXPECT_EQ(cut.report().truncated, 2);
  EXPECT_EQ(cut.report().truncated_tokens, 7);
  EXPECT_EQ(cut.Get(1).ids, Join({{kBos}, Bytes("1234")}));
  EXPECT_EQ(cut.Get(1).labels.size(), 5U);

  options.over_long = OverLong::kError;
  Refuse(options, "d.jsonl:2: the sample has 9 tokens and max_length is 5");
  options.max_length = 3;
  options.over_long = OverLong::kDrop;
  Refuse(
      options,
      "no sample is left of 4 records: 4 are longer than max_length 3 (the longest has 9 tokens)");
  // The model itself reads no more.
  options.context = 3;
  Refuse(options, "4 are longer than the context of the model, 3 tokens (the longest has 9");
  options.over_long = OverLong::kError;
  Refuse(options, "d.jsonl:1: the sample has 5 tokens and the context of the model has 3");
}

TEST_F(LeftOutSamplesTest, CutThatLeavesOnlyThePromptDropsTheSample) {
  DataOptions options = folder_.With("d.jsonl",
                                     "{\"prompt\": \"12345\", \"completion\": \"6\"}\n"
                                     "{\"prompt\": \"1\", \"completion\": \"2345\"}\n");
  options.max_length = 4;
  options.over_long = OverLong::kTruncate;
  const Dataset data = Open(options);
  EXPECT_EQ(data.size(), 1);
  EXPECT_EQ(data.report().dropped_masked, 1);
  EXPECT_EQ(data.report().truncated, 1);
}

TEST_F(LeftOutSamplesTest, PairsThatTheCutMakesEqualAreCountedAsSuch) {
  DataOptions options =
      folder_.With("d.jsonl",
                   "{\"prompt\": \"Q\", \"chosen\": \"1\", \"rejected\": \"2\"}\n"
                   "{\"prompt\": \"Q\", \"chosen\": \"1234\", \"rejected\": \"12345\"}\n"
                   "{\"prompt\": \"Q\", \"chosen\": \"1234567x\", \"rejected\": \"1234567y\"}\n"
                   "{\"prompt\": \"Q\", \"chosen\": \"1234567x\", \"rejected\": \"1234567x\"}\n"
                   "{\"prompt\": \"Q234567\", \"chosen\": \"x\", \"rejected\": \"y\"}\n");
  options.preference.form = PreferenceForm::kPairs;
  options.max_length = 6;
  options.over_long = OverLong::kTruncate;
  const Dataset cut = Open(options);
  EXPECT_EQ(cut.size(), 1);
  EXPECT_EQ(cut.report().dropped_equal_cut, 2);
  EXPECT_EQ(cut.report().dropped_identical, 1);
  EXPECT_EQ(cut.report().dropped_masked, 1);
  EXPECT_EQ(cut.report().dropped_long, 0);
  EXPECT_EQ(cut.report().files[0].found, 5);
  EXPECT_TRUE(cut.report().first_places.at("dropped_equal_cut").ends_with("d.jsonl:2"));
  EXPECT_THAT(WarnOfLostRecords(cut.report()),
              testing::HasSubstr("2 are dropped because both answers are the same when cut to 6 "
                                 "tokens (raise max_length, the longest has 11 tokens)"));

  options.over_long = OverLong::kDrop;
  EXPECT_EQ(Open(options).report().dropped_long, 3);
  EXPECT_EQ(Open(options).report().dropped_identical, 1);
}

}  // namespace
}  // namespace qlora
