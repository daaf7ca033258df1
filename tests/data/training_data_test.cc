#include "data/training_data.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "data/data_test_util.h"
#include "io/test_util.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DataLimits kLimits = {1000, 512};

TEST(TrainingDataTest, FieldsBecomeDataOptions) {
  ReadingFields fields;
  fields.max_length = 77;
  fields.over_long = "truncate";
  fields.dataset_format = "alpaca";
  fields.train_on_inputs = true;
  fields.append_eos = false;
  fields.prompt_layout = "text";
  fields.prompt_template = "{q}";
  fields.completion_template = "{a}";
  const DataOptions data = ToDataOptions(fields, {"a.jsonl", "b.csv:0.5"}, kLimits);
  ASSERT_EQ(data.sources.size(), 2U);
  EXPECT_EQ(data.sources[0].path, "a.jsonl");
  EXPECT_EQ(data.sources[0].format, RecordFormat::kInstruction);
  EXPECT_EQ(data.sources[1].path, "b.csv");
  EXPECT_EQ(data.sources[1].weight, 0.5);
  EXPECT_EQ(data.max_length, 77);
  EXPECT_EQ(data.over_long, OverLong::kTruncate);
  EXPECT_TRUE(data.train_on_inputs);
  EXPECT_FALSE(data.append_eos);
  EXPECT_EQ(data.layout.prompt_template, "{q}");
  EXPECT_EQ(data.layout.completion_template, "{a}");
  EXPECT_EQ(data.layout.choice, LayoutChoice::kText);
  EXPECT_EQ(data.vocab_size, 1000);
}

TEST(TrainingDataTest, AQuestionAboutTextsMakesDecisionsOfThem) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "d.jsonl";
  WriteTextFile(path, R"({"text": "rain", "label": 1})");
  const Tokenizer tokenizer = MakeTestTokenizer();
  const auto open = [&](const ReadingFields& fields) {
    return Dataset::Open(ToDataOptions(fields, {path.string()}, kLimits), tokenizer, nullptr);
  };
  ReadingFields fields;
  EXPECT_EQ(open(fields).layout().kind, PromptLayout::Kind::kWhole);
  fields.decision.instructions = "Is it wet?";
  EXPECT_THROW(open(fields), Error);  // 0 and 1 have no names
  fields.decision.label_names = {"no", "yes"};
  EXPECT_EQ(open(fields).layout().kind, PromptLayout::Kind::kDecision);
  fields.decision.label_names.clear();
  WriteTextFile(folder / "dataset_info.json",
                R"({"features": {"label": {"names": ["no", "yes"]}}})");
  EXPECT_EQ(open(fields).layout().kind, PromptLayout::Kind::kDecision);
}

TEST(TrainingDataTest, ReportsWhatAuthorsOfAnswersMayNotKnow) {
  const TemporaryFolder folder;
  const std::string path = (folder / "d.jsonl").string();
  WriteTextFile(path,
                R"({"state": "{\"a\": 1}", "type": "noul", "instructions": "?", "answer": "Yes"})"
                "\n"
                R"({"state": "s", "type": "noul", "instructions": "?", "answer": 0.5})"
                "\n"
                R"({"state": "t", "type": "noul", "instructions": "?", "answer": "no"})");
  const Tokenizer tokenizer = MakeTestTokenizer();
  const Dataset data =
      Dataset::Open(ToDataOptions(ReadingFields{}, {path}, kLimits), tokenizer, nullptr);
  EXPECT_THAT(
      WarnOfFindings(data.report()),
      ElementsAre(
          "answers yes and no are read as true and false (2 records, the first " + path + ":1)",
          "states that are JSON text are read as JSON (1 record, " + path + ":1)",
          "targets that give all options the same share (1 record, " + path + ":2)"));
}

// In whichever field and form they have it: an object and its JSON text are one state.
TEST(TrainingDataTest, RecordsOfOneStateAreHeldOutTogether) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "d.jsonl";
  WriteTextFile(path, R"({"state": {"a": 1}, "type": "noul", "instructions": "?", "answer": true}
{"state": "{\"a\":1}", "type": "noul", "instructions": "What?", "answer": true}
{"text": "rain", "label": "yes"}
{"text": "rain", "label": "no"}
{"question": "Who?", "choices": ["c", "d"], "answer": 0}
{"question": "Who?", "choices": ["e", "f"], "answer": 1})");
  const Tokenizer tokenizer = MakeTestTokenizer();
  DataFields fields;
  fields.dataset = {path.string()};
  fields.reading.decision.instructions = "Is it wet?";
  fields.reading.decision.label_names = {"no", "yes"};
  fields.val_set_size = 2;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const TrainingData data = OpenTrainingData(fields, kLimits, seed, tokenizer, nullptr, nullptr);
    ASSERT_EQ(data.held_out->size(), 2);
    EXPECT_EQ(data.held_out->StateOf(0), data.held_out->StateOf(1));
  }
}

// A state is shown as JSON, where null is another value.
TEST(TrainingDataTest, RefusesNumbersOfStatesThatNoDoubleHolds) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "d.jsonl";
  WriteTextFile(path,
                R"({"state": {"a": 1e400}, "type": "noul", "instructions": "?", "answer": true})");
  const Tokenizer tokenizer = MakeTestTokenizer();
  ExpectRefused(
      [&] {
        Dataset::Open(ToDataOptions(ReadingFields(), {path.string()}, kLimits), tokenizer, nullptr);
      },
      "number overflow parsing '1e400'");
}

TEST(TrainingDataTest, OptionsOfHeldOutChoicesAreInTheGivenOrder) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "d.jsonl";
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += R"({"state": "s)" + std::to_string(i) +
             R"(", "type": "choice", "instructions": "?", "criteria": ["c", "d", "e", "f"],)"
             R"( "answer": "e"})"
             "\n";
  }
  WriteTextFile(path, lines);
  const Tokenizer tokenizer = MakeTestTokenizer();
  // How many of the samples have the answer where the records have it.
  const auto in_place = [](const Dataset& data) {
    int count = 0;
    for (std::int64_t i = 0; i < data.size(); ++i) {
      count += data.Get(i).choices[0].targets[2] == 1 ? 1 : 0;
    }
    return count;
  };
  DataFields fields;
  fields.dataset = {path.string()};
  fields.val_set_size = 6;
  const auto open = [&] {
    return OpenTrainingData(fields, kLimits, 1, tokenizer, nullptr, nullptr);
  };
  const TrainingData split = open();
  EXPECT_EQ(in_place(*split.held_out), 6);
  EXPECT_EQ(in_place(split.held_out->OfFile(0)), 6);
  EXPECT_LT(in_place(split.train), 6);
  fields.val_set_size = 0;
  fields.eval_dataset = {path.string()};
  fields.reading.decision.option_order = "shuffle";
  EXPECT_EQ(in_place(*open().held_out), 12);
}

TEST(TrainingDataTest, RefusesOptionsOfDecisionsWithoutQuestions) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "d.jsonl";
  WriteTextFile(path, R"({"text": "rain"})");
  const Tokenizer tokenizer = MakeTestTokenizer();
  const auto refuse = [&](const auto& set, const char* name) {
    ReadingFields fields;
    set(fields.decision);
    try {
      Dataset::Open(ToDataOptions(fields, {path.string()}, kLimits), tokenizer, nullptr);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  };
  refuse([](DecisionReading& d) { d.max_options = 4; }, "max_options would have no effect");
  refuse([](DecisionReading& d) { d.option_order = "given"; }, "option_order would have no effect");
  refuse([](DecisionReading& d) { d.question_types = {"noul"}; }, "question_types would have no");
  refuse([](DecisionReading& d) { d.decision_template = "plain"; }, "decision_template would have");
  refuse([](DecisionReading& d) { d.soft_targets = false; }, "soft_targets would have no effect");
  refuse([](DecisionReading& d) { d.text_column = "body"; }, "text_column would have no effect");
  refuse([](DecisionReading& d) { d.instructions = "What?"; }, "this is no decision");
  // Questions that need no words of tables; the first record that does reads them.
  const std::string question =
      R"({"state": "s", "type": "noul", "instructions": "?", "answer": true})";
  WriteTextFile(path, question);
  refuse([](DecisionReading& d) { d.instructions = "What?"; },
         "instructions would have no effect: the records of");
  refuse(
      [](DecisionReading& d) {
        d.label_names = {"a", "b"};
      },
      "label_names would have no effect");
  WriteTextFile(path, question + "\n" + R"({"question": "q", "choices": ["a", "b"], "answer": 1})");
  ReadingFields fields;
  fields.decision.instructions = "What?";
  EXPECT_NO_THROW(
      Dataset::Open(ToDataOptions(fields, {path.string()}, kLimits), tokenizer, nullptr));
}

TEST(TrainingDataTest, TheDefaultLengthIsTheContextUpTo2048) {
  ReadingFields fields;
  EXPECT_EQ(ResolveMaxLength(fields, kLimits), 512);
  EXPECT_EQ(ResolveMaxLength(fields, {1000, 131072}), 2048);
  EXPECT_EQ(WarnOfLength(fields, kLimits), "");
  fields.max_length = 512;
  EXPECT_EQ(WarnOfLength(fields, kLimits), "");
  fields.max_length = 513;
  EXPECT_EQ(ResolveMaxLength(fields, kLimits), 513);
  EXPECT_NE(WarnOfLength(fields, kLimits), "");
  fields.max_length = -1;
  EXPECT_THROW(ResolveMaxLength(fields, kLimits), Error);
}

TEST(TrainingDataTest, FoldersAndPatternsStandForTheirFiles) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  fs::create_directories(folder / "inner.jsonl");
  for (const char* name :
       {"b.jsonl", "a.jsonl", "c.csv", "d.parquet", "notes.md", ".hidden.jsonl"}) {
    std::ofstream(folder / name) << "x";
  }
  const auto sources = [](const std::string& text) {
    return FindSources(text, RecordFormat::kAuto, DataPurpose::kTraining).sources;
  };
  const auto names = [&](const std::string& text) {
    std::vector<std::string> found;
    for (const DataSource& source : sources(text)) {
      found.push_back(source.path.filename().string() + ":" + std::to_string(int(source.weight)));
    }
    return found;
  };
  const std::string dir = folder.path().string();
  using Found = std::vector<std::string>;
  EXPECT_EQ(names(dir), (Found{"a.jsonl:1", "b.jsonl:1", "c.csv:1", "d.parquet:1"}));
  EXPECT_EQ(names(dir + "/?.jsonl:2"), (Found{"a.jsonl:2", "b.jsonl:2"}));
  EXPECT_EQ(names(dir + "/absent.jsonl"), Found{"absent.jsonl:1"});
  EXPECT_THROW(sources(dir + "/*.tsv"), Error);
  EXPECT_THROW(sources((folder / "inner.jsonl").string()), Error);
}

// A folder as mlx-lm wants it.
class FoundEvaluationTest : public testing::Test {
 protected:
  FoundEvaluationTest() {
    Put("train.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    Put("valid.jsonl", "{\"text\": \"d\"}\n");
    Put("test.jsonl", "{\"text\": \"e\"}\n{\"text\": \"f\"}\n");
    Put("LICENSE.txt", "free");
    fields_.dataset = {folder_.path().string()};
    fields_.reading.max_length = 16;
  }
  void Put(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  TrainingData Open() { return OpenTrainingData(fields_, {}, 1, tokenizer_, nullptr, nullptr); }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  TemporaryFolder folder_;
  DataFields fields_;
};

TEST_F(FoundEvaluationTest, FilesBesideTheTrainingDataAreEvaluated) {
  EXPECT_EQ(WithFoundEvaluation(fields_).eval_dataset,
            std::vector{(folder_ / "valid.jsonl").string()});
  const TrainingData data = Open();
  EXPECT_EQ(data.train.size(), 3);
  ASSERT_TRUE(data.held_out);
  EXPECT_EQ(data.held_out->size(), 1);
  EXPECT_EQ(data.train.report().notes,
            std::vector{folder_.path().string() +
                        ": held out for evaluation: valid.jsonl; not read: LICENSE.txt (not data); "
                        "not read: test.jsonl (test data)"});
  EXPECT_THAT(RenderReport(data.train.report()), HasSubstr(data.train.report().notes[0] + "\n"));
}

TEST_F(FoundEvaluationTest, TheUsersOwnWishComesFirst) {
  fields_.val_set_size = 1;
  EXPECT_EQ(Open().train.size(), 2);
  EXPECT_THAT(Open().train.report().notes[0], HasSubstr("valid.jsonl (evaluation data)"));
  fields_.reading.decision.max_options = 4;
  EXPECT_THAT([&] { Open(); }, testing::ThrowsMessage<Error>(HasSubstr("asked with all options")));
  fields_.reading.decision = {};
  fields_.val_set_size = 0;
  fields_.eval_dataset = {(folder_ / "test.jsonl").string()};
  EXPECT_EQ(Open().held_out->size(), 2);
  fields_.eval_dataset = {folder_.path().string()};
  EXPECT_EQ(Open().held_out->size(), 1);
  fields_.eval_dataset.clear();
  fields_.dataset = {(folder_ / "train.jsonl").string()};
  EXPECT_FALSE(Open().held_out);
  EXPECT_TRUE(Open().train.report().notes.empty());
}

TEST_F(FoundEvaluationTest, NamedHeldOutFilesComeWithAWarning) {
  fields_.dataset = {(folder_ / "te*.jsonl").string()};
  const DataReport report = Open().train.report();
  EXPECT_EQ(report.samples, 2);
  EXPECT_THAT(WarnOfHeldOutNames(report), HasSubstr("test.jsonl"));
}

TEST_F(FoundEvaluationTest, RecordsOfTheProgramAreReadByName) {
  const Stream file(std::tmpfile());
  std::fputs("{\"text\": \"a\"}\n{\"text\": null}\n", file.get());
  std::fflush(file.get());
  fields_.dataset = {"records"};
  fields_.eval_dataset = {(folder_ / "valid.jsonl").string()};
  fields_.reading.given = {{"records", fileno(file.get())}};
  fields_.reading.bad_records = "drop";
  fields_.dataset_prepared_path = (folder_ / "index").string();
  const TrainingData data = Open();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "index")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("records")) << entry.path();
  }
  EXPECT_EQ(data.train.size(), 1);
  EXPECT_EQ(data.train.Where(0), "records:1");
  EXPECT_EQ(data.train.report().files[0].container, "JSON Lines");
  fields_.reading.bad_records = "error";
  try {
    Open();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("records:2"));
  }
}

}  // namespace
}  // namespace qlora
