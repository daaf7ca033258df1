// The formats of records: what of each is prompt, answer and layout.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "data/dataset_fixture.h"

namespace qlora {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

using DatasetFormatsTest = DatasetTest;

TEST_F(DatasetFormatsTest, CompletionIsTrainedAndPromptMasked) {
  const std::string line = R"({"prompt": "Q\n", "completion": "A"})";
  const Sample sample = Open("d.jsonl", line).Get(0);
  EXPECT_EQ(sample.ids, Join({{kBos}, Bytes("Q\nA"), {kEos}}));
  EXPECT_EQ(sample.labels, Join({Masked(3), Bytes("A"), {kEos}}));

  DataOptions options = folder_.With("d.jsonl", line);
  options.train_on_inputs = true;
  EXPECT_EQ(Open(options).Get(0).labels, sample.ids);
}

TEST_F(DatasetFormatsTest, TokenThatSpansTheBoundaryIsSplitAndCounted) {
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

TEST_F(DatasetFormatsTest, InstructionsHaveTheLayoutThatIsChosen) {
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

TEST_F(DatasetFormatsTest, TemplatesReadAnyFields) {
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

TEST_F(DatasetFormatsTest, FieldsThatTellNoFormatComeWithAdvice) {
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

TEST_F(DatasetFormatsTest, OtherNamesOfPromptAndAnswerAreReadAndNamed) {
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

TEST_F(DatasetFormatsTest, RecordsOfDollyAreAlpacas) {
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

// In each record, whatever the names of the first one are.
TEST_F(DatasetFormatsTest, ANameThatSaysNothingGivesWayToAnother) {
  const auto expect_same = [&](const std::string& plain, const std::string& other) {
    SCOPED_TRACE(other);
    const Dataset expected = Open("plain.jsonl", plain);
    const Dataset found = Open("other.jsonl", other);
    ASSERT_EQ(found.size(), expected.size());
    for (std::int64_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found.Get(i).ids, expected.Get(i).ids);
      EXPECT_EQ(found.Get(i).labels, expected.Get(i).labels);
    }
  };
  const std::string alpaca = R"({"instruction": "Add.", "input": "1", "output": "2"})";
  const std::string pair = R"({"prompt": "Why?", "completion": "Because"})";
  for (const char* nothing : {"null", R"("")", "[]"}) {
    const auto with = [nothing](std::string record) { return ReplaceAll(record, "NO", nothing); };
    const std::string context =
        with(R"({"instruction": "Add.", "input": NO, "context": "1", "output": "2"})");
    const std::string input =
        with(R"({"instruction": "Add.", "input": "1", "context": NO, "output": "2"})");
    const std::string response =
        with(R"({"instruction": "Add.", "input": "1", "output": NO, "response": "2"})");
    expect_same(alpaca + "\n" + alpaca + "\n" + alpaca, context + "\n" + input + "\n" + response);
    expect_same(alpaca + "\n" + alpaca, input + "\n" + context);
    const std::string question =
        with(R"({"prompt": NO, "question": "Why?", "completion": "Because"})");
    const std::string answer = with(R"({"prompt": "Why?", "completion": NO, "answer": "Because"})");
    expect_same(pair + "\n" + pair + "\n" + pair, question + "\n" + pair + "\n" + answer);
    expect_same(pair + "\n" + pair, pair + "\n" + question);
  }
  // The report names what the first record shows.
  EXPECT_EQ(
      Open("d.jsonl", R"({"instruction": "Add.", "input": "", "context": "1", "output": "2"})")
          .report()
          .files[0]
          .fields,
      "instruction, input: context, output");
  Refuse(R"({"prompt": "", "question": "a", "query": "b", "completion": "c"})", "field 'question'");
  Refuse(pair + "\n" + R"({"prompt": "", "question": "a", "query": "b", "completion": "c"})",
         "d.jsonl:2: field 'question' reads like a part of the conversation");
}

// Its `input` holds the messages, and is no prompt under another name.
TEST_F(DatasetFormatsTest, PairsOfOpenAiAreRead) {
  const ChatTemplate chat("{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer_);
  const auto ids_of = [&](const std::string& question) {
    DataOptions options = folder_.With(
        "d.jsonl", "{" + question +
                       R"(, "preferred_output": [{"role": "assistant", "content": "x"}], )"
                       R"("non_preferred_output": [{"role": "assistant", "content": "y"}]})");
    options.preference.form = PreferenceForm::kPairs;
    return Dataset::Open(options, tokenizer_, &chat).Get(0).ids;
  };
  const std::string turns = R"([{"role": "user", "content": "Q"}])";
  EXPECT_EQ(ids_of(R"("input": {"messages": )" + turns + R"(, "parallel_tool_calls": true})"),
            ids_of(R"("prompt": )" + turns));
}

TEST_F(DatasetFormatsTest, NamesThatDoNotTellAreRefused) {
  Refuse(R"({"question": "a", "answer": "b", "input": "c", "output": "d"})", "cannot tell");
  Refuse(R"({"question": "a", "answer": "b", "prompt": "c"})", "cannot tell");
  Refuse(R"({"instruction": "a", "context": "b", "input": "c", "response": "d"})",
         "field 'context' reads like a part of the conversation");
  Refuse(R"({"prompt": "a", "response": "b", "chosen": "c", "rejected": "d"})", "preference");
  Refuse("{\"question\": \"a\", \"answer\": \"b\"}\n{\"question\": \"a\", \"answer\": []}\n",
         "d.jsonl:2 (prompt: question, completion: answer): field 'completion': expected text");
}

TEST_F(DatasetFormatsTest, ARecordWithNullDoesNotHideTheFormat) {
  const std::string rest = "\n{\"prompt\": \"Q\", \"completion\": \"A\"}\n";
  Refuse("{\"prompt\": \"Q\", \"completion\": null}" + rest,
         "d.jsonl:1: field 'completion': expected text, found null");
  Refuse(R"({"instruction": "Q", "output": null})", "fields: instruction, output (null)");
  const Dataset data = Open(
      "d.jsonl", "{\"messages\": null, \"text\": \"a\"}\n{\"messages\": null, \"text\": \"b\"}\n");
  EXPECT_EQ(data.report().files[0].format, "text");
}

TEST_F(DatasetFormatsTest, InputIdsAreUsedAsTheyAre) {
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

TEST_F(DatasetFormatsTest, NamesOfFormatsAndSources) {
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
