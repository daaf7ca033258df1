#include "data/dataset.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "data/data_test_util.h"
#include "data/training_data.h"

namespace qlora {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class DatasetTest : public testing::Test {
 protected:
  Dataset Open(const DataOptions& options) { return Dataset::Open(options, tokenizer_, nullptr); }
  Dataset Open(const std::string& name, const std::string& text) {
    return Open(folder_.With(name, text));
  }
  void Refuse(const DataOptions& options, const std::string& part) {
    ExpectRefused([&] { Open(options); }, part);
  }
  void Refuse(const std::string& text, const std::string& part) {
    Refuse(folder_.With("d.jsonl", text), part);
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder folder_;
};

TEST_F(DatasetTest, TextGetsBosAndEosAndIsAllTrained) {
  const Dataset data = Open("d.jsonl", "{\"text\": \"xy\"}\n\n{\"text\":\"cab</s>\"}\n");
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("xy"), {kEos}}));
  EXPECT_EQ(data.Get(0).labels, data.Get(0).ids);
  EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("c"), {kAb, kEos}})) << "EOS is there already";
  EXPECT_TRUE(data.Where(1).ends_with("d.jsonl:3"));
  EXPECT_EQ(data.length(1), 4);
  EXPECT_EQ(data.report().tokens, 8);
  EXPECT_EQ(data.report().supervised, 6) << "BOS is predicted by nothing";
  EXPECT_EQ(data.report().files[0].format, "text");
}

TEST_F(DatasetTest, ATextThatBeginsWithBosGetsNoOther) {
  const Dataset texts =
      Open("d.jsonl", "{\"text\": \"<s>xy</s>\"}\n{\"text\": \"xy\"}\n{\"text\": \"<s>z\"}\n");
  EXPECT_EQ(texts.Get(0).ids, texts.Get(1).ids);
  EXPECT_EQ(texts.report().own_bos, 2);
  EXPECT_THAT(RenderReport(texts.report()), HasSubstr("texts that begin with BOS"));

  const Dataset pairs = Open("d.jsonl",
                             "{\"prompt\": \"<s>Q\", \"completion\": \"A\"}\n"
                             "{\"prompt\": \"Q\", \"completion\": \"A\"}\n");
  EXPECT_EQ(pairs.Get(0).ids, pairs.Get(1).ids);
  EXPECT_EQ(pairs.Get(0).labels, pairs.Get(1).labels);
  EXPECT_EQ(pairs.report().own_bos, 1);

  const Dataset raw = Open("d.txt", "<s>xyz");
  EXPECT_EQ(raw.Get(0).ids, Join({{kBos}, Bytes("xyz")}));
  EXPECT_EQ(raw.report().own_bos, 1);
}

TEST_F(DatasetTest, ColumnsWithoutANameAreNotRead) {
  const auto fields = [this](const std::string& name, const std::string& text) {
    return Open(name, text).report().files[0].fields;
  };
  EXPECT_EQ(fields("d.jsonl", R"({"prompt": "Q", "completion": "A"})"), "");
  EXPECT_EQ(fields("d.csv", ",instruction,output\n0,Add.,2\n"),
            "not read: the column without a name");
  EXPECT_EQ(fields("d.csv", ",question,answer,\n0,Q,A,\n"),
            "prompt: question, completion: answer; not read: the 2 columns without a name");
}

TEST_F(DatasetTest, ReadingIsReported) {
  DataOptions options = folder_.With("a.jsonl", "{\"text\": \"x\"}\n");
  options.sources.push_back(folder_.Write("b.txt", "some text"));
  std::vector<std::int64_t> done;
  Dataset::Open(options, tokenizer_, nullptr, nullptr, [&](std::int64_t now, std::int64_t total) {
    EXPECT_EQ(total, 23);
    done.push_back(now);
  });
  ASSERT_GE(done.size(), 2U);
  EXPECT_EQ(done.front(), 0);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 23);
  struct Stop {};
  EXPECT_THROW(Dataset::Open(options, tokenizer_, nullptr, nullptr,
                             [](std::int64_t, std::int64_t) { throw Stop(); }),
               Stop);
}

TEST_F(DatasetTest, EosIsLeftOutOnlyWhenAsked) {
  DataOptions options = folder_.With("d.jsonl", R"({"text": "xy"})");
  options.append_eos = false;
  const Dataset data = Open(options);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("xy")}));
  EXPECT_EQ(data.report().without_eos, 1);
}

TEST_F(DatasetTest, CompletionIsTrainedAndPromptMasked) {
  const std::string line = R"({"prompt": "Q\n", "completion": "A"})";
  const Sample sample = Open("d.jsonl", line).Get(0);
  EXPECT_EQ(sample.ids, Join({{kBos}, Bytes("Q\nA"), {kEos}}));
  EXPECT_EQ(sample.labels, Join({Masked(3), Bytes("A"), {kEos}}));

  DataOptions options = folder_.With("d.jsonl", line);
  options.train_on_inputs = true;
  EXPECT_EQ(Open(options).Get(0).labels, sample.ids);
}

TEST_F(DatasetTest, TokenThatSpansTheBoundaryIsSplitAndCounted) {
  const Dataset data = Open("d.jsonl",
                            "{\"prompt\": \"xa\", \"completion\": \"by\"}\n"
                            "{\"prompt\": \"x\", \"completion\": \"ab\"}\n"
                            "{\"prompt\": \"x\", \"completion\": \"\"}\n");
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("xaby"), {kEos}}));
  EXPECT_EQ(data.Get(0).labels, Join({Masked(3), Bytes("by"), {kEos}}));
  EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("x"), {kAb, kEos}}));
  EXPECT_EQ(data.Get(2).labels, Join({Masked(2), {kEos}}));
  EXPECT_EQ(data.report().split_boundaries, 1);
  EXPECT_EQ(data.report().empty_completions, 1);
}

TEST_F(DatasetTest, InstructionsHaveTheLayoutThatIsChosen) {
  const std::string lines =
      "{\"instruction\": \"Add.\", \"input\": \"1\", \"output\": \"2\"}\n"
      "{\"instruction\": \"Go.\", \"input\": \"\", \"output\": \"Gone\"}\n"
      "{\"instruction\": \"Go.\", \"system\": \"Be kind.\", \"output\": \"No\"}\n";
  const auto expect = [this](const Sample& sample, const std::string& prompt,
                             const std::string& answer) {
    EXPECT_EQ(sample.ids, Join({{kBos}, tokenizer_.Encode(prompt + answer, false), {kEos}}));
    EXPECT_EQ(sample.labels.size(), sample.ids.size());
    EXPECT_EQ(std::count(sample.labels.begin(), sample.labels.end(), kIgnoreLabel),
              std::ssize(sample.labels) - std::ssize(answer) - 1);
  };
  const Dataset data = Open("d.jsonl", lines);
  const std::string task = "Below is an instruction that describes a task";
  const std::string request =
      ". Write a response that appropriately completes the request.\n\n### Instruction:\n";
  expect(data.Get(0),
         task + ", paired with an input that provides further context" + request +
             "Add.\n\n### Input:\n1\n\n### Response:\n",
         "2");
  expect(data.Get(1), task + request + "Go.\n\n### Response:\n", "Gone");
  expect(data.Get(2), "Be kind.\n\n### Instruction:\nGo.\n\n### Response:\n", "No");
  EXPECT_EQ(data.report().files[0].format, "alpaca");

  DataOptions before = folder_.With("d.jsonl", lines);
  before.layout.choice = LayoutChoice::kInstructionAnswer;
  const Dataset answers = Open(before);
  expect(answers.Get(0), "Instruction:\nAdd.\n\nInput:\n1\n\nAnswer:\n", "2");
  expect(answers.Get(1), "Instruction:\nGo.\n\nAnswer:\n", "Gone");
  expect(answers.Get(2), "Be kind.\n\nInstruction:\nGo.\n\nAnswer:\n", "No");

  DataOptions options = folder_.With("d.jsonl", lines);
  options.layout.prompt_template = "{{{instruction}}}[[ ({input})]] > ";
  options.layout.completion_template = "{output}!";
  const Dataset custom = Open(options);
  expect(custom.Get(0), "{Add.} (1) > ", "2!");
  expect(custom.Get(1), "{Go.} > ", "Gone!");
  Refuse(R"({"instruction": "a", "output": "b", "history": [["x", "y"]]})",
         "d.jsonl:1: field 'hist");
}

TEST_F(DatasetTest, TemplatesReadAnyFields) {
  DataOptions options = folder_.With("d.csv", "question,reason\nWhy?,Because\n");
  Refuse(options, "question, reason");
  options.layout.prompt_template = "{question}\n";
  Refuse(options, "must be given together");
  options.layout.completion_template = "{reason}";
  EXPECT_EQ(Open(options).Get(0).labels, Join({Masked(6), Bytes("Because"), {kEos}}));
  options.layout.completion_template = "{reply}";
  Refuse(options, "d.csv:2: field 'reply' is missing");
  DataOptions null = folder_.With("d.jsonl", "{\"question\": \"Why?\", \"reason\": null}\n");
  null.layout = {.prompt_template = "{question}", .completion_template = "{reason}"};
  Refuse(null, "d.jsonl:1: field 'reason' is null");
  for (const char* bad : {"{", "{x", "x}", "[[x", "x]]", "[[ [[x]] ]]", "{}"}) {
    options.layout.completion_template = bad;
    Refuse(options, "completion_template, column");
  }
}

TEST_F(DatasetTest, FieldsThatTellNoFormatComeWithAdvice) {
  Refuse(folder_.With("d.csv", "Question,answer\nWhy?,Because\n"),
         "d.csv:2: cannot tell the format from the fields: Question, answer; the names of fields "
         "are in lower case: write question in place of Question");
  Refuse(R"({"type": "text_only", "instances": [{"text": "a"}]})",
         "write the list 'instances' alone");
  Refuse("{\n\"text\": \"a\"\n", "or the file must be an array of objects");
  Refuse("{\"question\": \"a\", \"answer\": \"b\"}\n{\"question\": null, \"answer\": \"b\"}\n",
         "d.jsonl:2 (prompt: question, completion: answer): field 'prompt': expected text, found "
         "null");
}

TEST_F(DatasetTest, OtherNamesOfPromptAndAnswerAreReadAndNamed) {
  const std::vector<std::int32_t> expected =
      Open("d.jsonl", R"({"prompt": "Why?", "completion": "Because"})").Get(0).labels;
  for (const auto& [prompt, answer] :
       {std::pair("prompt", "response"), {"input", "output"}, {"question", "answer"}}) {
    const Dataset data =
        Open("d.jsonl", fmt::format("{{\"{}\": \"Why?\", \"{}\": \"Because\"}}", prompt, answer));
    EXPECT_EQ(data.Get(0).labels, expected);
    EXPECT_EQ(data.report().files[0].format, "prompt_completion");
    EXPECT_THAT(data.report().files[0].fields, EndsWith(fmt::format("completion: {}", answer)));
    EXPECT_EQ((*data.ReadRecord(0))["prompt"], "Why?");
  }
  const Dataset csv = Open("d.csv", "id,question,answer\n7,Why?,Because\n");
  EXPECT_EQ(csv.Get(0).labels, expected);
  EXPECT_THAT(
      RenderReport(csv.report()),
      HasSubstr("d.csv: CSV, format prompt_completion (prompt: question, completion: answer; "
                "not read: id), 1 of 1 records kept"));
}

TEST_F(DatasetTest, RecordsOfDollyAreAlpacas) {
  const Dataset alpaca = Open("a.jsonl", R"({"instruction": "Add.", "input": "1", "output": "2"})");
  DataOptions options = folder_.With(
      "d.jsonl", R"({"instruction": "Add.", "context": "1", "response": "2", "category": "x"})");
  for (const RecordFormat format : {RecordFormat::kAuto, RecordFormat::kInstruction}) {
    options.sources[0].format = format;
    const Dataset dolly = Open(options);
    EXPECT_EQ(dolly.Get(0).labels, alpaca.Get(0).labels);
    EXPECT_EQ(dolly.report().files[0].fields,
              "instruction, input: context, output: response; not read: category");
  }
}

TEST_F(DatasetTest, NamesThatDoNotTellAreRefused) {
  Refuse(R"({"question": "a", "answer": "b", "input": "c", "output": "d"})", "cannot tell");
  Refuse(R"({"question": "a", "answer": "b", "prompt": "c"})", "cannot tell");
  Refuse(R"({"instruction": "a", "context": "b", "input": "c", "response": "d"})",
         "field 'context' reads like a part of the conversation");
  Refuse(R"({"prompt": "a", "response": "b", "chosen": "c", "rejected": "d"})", "preference");
  Refuse("{\"question\": \"a\", \"answer\": \"b\"}\n{\"question\": \"a\", \"answer\": []}\n",
         "d.jsonl:2 (prompt: question, completion: answer): field 'completion': expected text");
}

TEST_F(DatasetTest, ARecordWithNullDoesNotHideTheFormat) {
  const std::string rest = "\n{\"prompt\": \"Q\", \"completion\": \"A\"}\n";
  Refuse("{\"prompt\": \"Q\", \"completion\": null}" + rest,
         "d.jsonl:1: field 'completion': expected text, found null");
  Refuse(R"({"instruction": "Q", "output": null})", "fields: instruction, output (null)");
  const Dataset data = Open(
      "d.jsonl", "{\"messages\": null, \"text\": \"a\"}\n{\"messages\": null, \"text\": \"b\"}\n");
  EXPECT_EQ(data.report().files[0].format, "text");
}

TEST_F(DatasetTest, InputIdsAreUsedAsTheyAre) {
  const Dataset data =
      Open("d.jsonl",
           "{\"input_ids\": [5, 6, 7]}\n"
           "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 1], \"attention_mask\": [1,1,1]}\n"
           "{\"input_ids\": [5, 5, 5], \"labels\": [5, 5, 5]}\n");
  EXPECT_EQ(data.Get(0).ids, (Ids{5, 6, 7}));
  EXPECT_EQ(data.Get(0).labels, (Ids{5, 6, 7}));
  EXPECT_EQ(data.Get(1).labels, (Ids{kIgnoreLabel, 6, kEos}));
  EXPECT_EQ(data.report().foreign_labels, 1);
  EXPECT_EQ(data.report().without_eos, 2);
  EXPECT_EQ(data.report().without_bos, 3);
  Refuse(R"({"input_ids": [5, 6], "labels": [5]})", "d.jsonl:1: 2 input_ids but 1 labels");
  Refuse(R"({"input_ids": [5, 6, 7], "labels": [6, 7, -100]})", "shifted already");
  Refuse(R"({"input_ids": [5, 6.5]})", "input_ids[1]: expected an integer");
  Refuse(R"({"input_ids": [5, 99999999999]})", "input_ids[1]");
  Refuse("{\"input_ids\": [5, " + std::string(48'000, '[') + "]}", "d.jsonl:1:81: malformed JSON");
  Refuse(R"({"input_ids": "5 6"})", "expected a list of integers");
  Refuse(R"({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]})", "without padding");
}

TEST_F(DatasetTest, RefusesWhatCannotBeTrainedOn) {
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

TEST_F(DatasetTest, SamplesWithoutATrainedTokenAreLeftOutAndCounted) {
  const Dataset data = Open("d.jsonl",
                            "{\"input_ids\": [5]}\n{\"input_ids\": [5, 6]}\n"
                            "{\"input_ids\": [5, 6], \"labels\": [-100, -100]}\n"
                            "{\"input_ids\": [5, 7]}\n");
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.report().dropped_untrained, 2);
  EXPECT_TRUE(data.Where(1).ends_with("d.jsonl:4"));
  EXPECT_EQ(data.supervised(1), 1);
}

TEST_F(DatasetTest, TheFirstDuplicateIsFirstInTheFile) {
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

TEST_F(DatasetTest, OverLongSamplesAreDroppedCutOrRefusedAndCounted) {
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

TEST_F(DatasetTest, CutThatLeavesOnlyThePromptDropsTheSample) {
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

TEST_F(DatasetTest, PairsThatTheCutMakesEqualAreCountedAsSuch) {
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

TEST_F(DatasetTest, RawTextIsCutIntoWindows) {
  DataOptions options = folder_.With("d.txt", "\xEF\xBB\xBFxab12\r\n34567");  // 11 tokens
  options.max_length = 5;
  const Dataset data = Open(options);
  ASSERT_EQ(data.size(), 3);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("x"), {kAb}, Bytes("12")}));
  EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("\r\n34")}));
  EXPECT_EQ(data.Get(2).ids, Join({{kBos}, Bytes("567")}));
  EXPECT_EQ(data.Get(2).labels, data.Get(2).ids);
  EXPECT_TRUE(data.Where(2).ends_with("d.txt: window 3"));
  EXPECT_EQ(data.report().files[0].records, 3);

  const Tokenizer plain = MakeTestTokenizer({.bos = false, .chat = false});
  const Dataset without = Dataset::Open(options, plain, nullptr);
  ASSERT_EQ(without.size(), 2);
  EXPECT_EQ(without.Get(1).ids, Bytes("\n3456"));
  EXPECT_EQ(without.report().dropped_tail, 1) << "a window of one token predicts nothing";

  Refuse(folder_.With("e.txt", ""), "empty");
  Refuse(folder_.With("e.txt", "ok\nbad \xFF"), "e.txt:2:5: the text is not UTF-8");
  Refuse(folder_.With("e.txt", std::string("ok\nbad \0", 8)), "e.txt:2:5: found a zero byte");
  Refuse(folder_.With("e.csv", "text\nok\nbad \xFF\n"), "e.csv:3:5: the text is not UTF-8");
  Refuse(folder_.With("e.jsonl", "{\"text\": \"ok\"}\n{\"text\": \"gr\xFCn\"}\n"),
         "e.jsonl:2:13: the text is not UTF-8 (byte 27, 0xFC); it reads like WINDOWS-1252");
  DataOptions named = folder_.With("e.md", "xyz");
  named.sources[0].format = RecordFormat::kRaw;
  EXPECT_EQ(Open(named).Get(0).ids, Join({{kBos}, Bytes("xyz")}));
}

// The file has no blocks on the disk; a program that read it as text would need all memory.
TEST_F(DatasetTest, AHugeFileOfZerosIsRefusedAtOnce) {
  const DataOptions options = folder_.With("zeros.txt", "");
  std::filesystem::resize_file(options.sources[0].path, std::uintmax_t{1} << 40);
  Refuse(options, "zeros.txt:1:1: found a zero byte, expected text");
}

TEST_F(DatasetTest, ReadsSeveralFilesOfDifferentForms) {
  DataOptions options = folder_.With("a.json", R"([{"text": "x"}, {"text": "y"}])");
  options.sources.push_back(folder_.Write("b.csv", "prompt,completion\np,c\n"));
  options.sources.push_back(folder_.Write("c.txt", "z"));
  options.sources[1].weight = 2.5;
  const Dataset data = Open(options);
  EXPECT_EQ(data.size(), 4);
  EXPECT_EQ(data.Get(2).labels, Join({Masked(2), Bytes("c"), {kEos}}));
  EXPECT_EQ(data.Get(3).ids, Join({{kBos}, Bytes("z")}));
  const auto parts = data.parts();
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].samples, 1);
  EXPECT_EQ(parts[1].weight, 2.5);
  EXPECT_EQ(data.report().files[1].container, "CSV");
}

TEST_F(DatasetTest, TokenizerWithoutEosIsRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json")
      << R"({"model": {"type": "BPE", "vocab": {"x": 0, "y": 1}, "merges": []}})";
  const Tokenizer bare = Tokenizer::Load(folder.path());
  const DataOptions options = folder_.With("d.jsonl", R"({"text": "xy"})");
  ExpectRefused([&] { Dataset::Open(options, bare, nullptr); }, "names no EOS");
}

TEST_F(DatasetTest, ThreadsChangeNothingAndTheFirstBadLineIsNamed) {
  std::string lines;
  for (int i = 0; i < 9000; ++i) {
    lines += "{\"text\": \"" + std::string(i % 50, 'x') + "y\"}\n";
  }
  Context context(4);
  const DataOptions options = folder_.With("d.jsonl", lines);
  const Dataset one = Open(options);
  const Dataset four = Dataset::Open(options, tokenizer_, nullptr, &context);
  EXPECT_EQ(one.fingerprint(), four.fingerprint());
  EXPECT_EQ(ReportToJson(one.report()), ReportToJson(four.report()));
  const DataOptions bad = folder_.With("d.jsonl", lines + "{\n" + lines + "{\n");
  ExpectRefused([&] { Dataset::Open(bad, tokenizer_, nullptr, &context); }, "d.jsonl:9001:");
}

TEST_F(DatasetTest, SplitIsSeededExactAndDisjoint) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"" + std::to_string(i % 90) + "\"}\n";
  const Dataset data = Open("d.jsonl", lines);
  EXPECT_EQ(data.report().duplicates, 10);
  for (const double wanted : {7.0, 0.07}) {
    const TrainingData split = SplitDataset(data, wanted, 1);
    EXPECT_EQ(split.held_out->size(), 7);
    EXPECT_EQ(split.train.size(), 93);
    EXPECT_EQ(split.held_out->report().samples, 7);
    EXPECT_EQ(split.train.report().tokens + split.held_out->report().tokens, data.report().tokens);
    EXPECT_EQ(split.train.parts()[0].samples, 93);
    std::set<std::string> places;
    std::vector<int> order;
    for (const Dataset* part : {&split.train, &*split.held_out}) {
      for (std::int64_t i = 0; i < part->size(); ++i) places.insert(part->Where(i));
    }
    EXPECT_EQ(places.size(), 100U);
    EXPECT_EQ(split.train.fingerprint(), SplitDataset(data, wanted, 1).train.fingerprint());
    EXPECT_NE(split.train.fingerprint(), SplitDataset(data, wanted, 2).train.fingerprint());
  }
  EXPECT_EQ(data.CountShared(Open("e.jsonl", "{\"text\": \"5\"}\n{\"text\": \"95\"}\n")), 2);
  EXPECT_EQ(SplitDataset(data, 0.001, 1).held_out->size(), 1);
  for (const double wanted : {0.0, -1.0, 100.0, 2.5, 0.999, std::nan("")}) {
    ExpectRefused([&] { SplitDataset(data, wanted, 1); }, "val_set_size");
  }
}

TEST_F(DatasetTest, ARecordOfSeveralSamplesIsNotDivided) {
  std::string lines;
  for (const char* word : {"a", "b", "c", "d", "e", "f"}) {
    lines += fmt::format(
        R"({{"messages": [{{"role": "user", "content": "{0}"}}, {{"role": "assistant", "content": "{0}"}}, )"
        R"({{"role": "user", "content": "x"}}, {{"role": "assistant", "content": "y"}}]}})"
        "\n",
        word);
  }
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}",
      tokenizer_);
  DataOptions options = folder_.With("d.jsonl", lines);
  options.train_turns = TrainTurns::kEach;
  const Dataset data = Dataset::Open(options, tokenizer_, &chat);
  ASSERT_EQ(data.size(), 12);
  for (const std::uint64_t seed : {1, 2, 3}) {
    const TrainingData split = SplitDataset(data, 3, seed);
    ASSERT_EQ(split.held_out->size(), 6);
    ASSERT_EQ(split.train.size(), 6);
    std::set<std::string> places;
    for (std::int64_t i = 0; i < 6; ++i) places.insert(split.held_out->Where(i));
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_FALSE(places.contains(split.train.Where(i)));
  }
}

TEST_F(DatasetTest, ATextIsSharedWhateverIsTrainedOfIt) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}",
      tokenizer_);
  const auto open = [&](const std::string& weight, const std::string& last) {
    return Dataset::Open(
        folder_.With("d.jsonl", R"({"messages": [{"role": "user", "content": "u"}, )"
                                R"({"role": "assistant", "content": "x")" +
                                    weight + R"(}, {"role": "assistant", "content": ")" + last +
                                    "\"}]}"),
        tokenizer_, &chat);
  };
  const Dataset data = open("", "y");
  EXPECT_EQ(data.CountShared(open(R"(, "weight": 0)", "y")), 1);
  EXPECT_EQ(data.CountShared(open("", "z")), 0);
}

TEST_F(DatasetTest, NamesOfFormatsAndSources) {
  EXPECT_EQ(ParseRecordFormat("openai"), RecordFormat::kMessages);
  EXPECT_EQ(RecordFormatName(ParseRecordFormat("instruction")), "alpaca");
  ExpectRefused([] { ParseRecordFormat("x"); }, "'x'");
  EXPECT_EQ(ParseOverLong("error"), OverLong::kError);
  ExpectRefused([] { ParseOverLong("x"); }, "drop, truncate or error");
  EXPECT_EQ(ParseDataSource("a.jsonl").path, "a.jsonl");
  EXPECT_EQ(ParseDataSource("a.jsonl:0.5").path, "a.jsonl");
  EXPECT_EQ(ParseDataSource("a.jsonl:0.5").weight, 0.5);
  EXPECT_EQ(ParseDataSource("C:x").path, "C:x");
  const DataSource exists = folder_.Write("a:2", "x");
  EXPECT_EQ(ParseDataSource(exists.path.string()).path, exists.path);
  ExpectRefused([] { ParseDataSource(""); }, "empty");
}

}  // namespace
}  // namespace qlora
