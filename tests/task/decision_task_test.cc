// Tasks of decisions: the figures of `eval`, by record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "io/json.h"
#include "model/golden.h"
#include "qlora/error.h"
#include "qlora/tasks.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kFolder = kGoldenDir / "decision";
const std::string kQuestions = (kFolder / "qwen3" / "eval.jsonl").string();

ModelOptions Options() {
  ModelOptions options;
  options.model_name_or_path = (kFolder / "tiny-qwen3").string();
  options.load_in_4bit = "false";
  options.compute_dtype = "float32";
  return options;
}

class DecisionTaskTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
    return (folder_.path() / name).string();
  }
  TaskResult Measure(const std::string& path, const TaskOptions& options = {}) {
    return EvaluateTask(model_, path, options);
  }
  // The message of a task that is refused without a model.
  std::string ErrorOf(const std::string& path, TaskOptions options = {}) {
    options.task = {path};
    try {
      CheckTasks(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  Context context_{2};
  Model model_ = Model::Load(context_, Options());
};

TEST_F(DecisionTaskTest, AFileOfQuestionsHasTheFiguresOfEval) {
  const TaskResult result = Measure(kQuestions);
  EXPECT_EQ(result.task, "eval");
  EXPECT_EQ(result.records, 16);
  EvalOptions eval;
  eval.dataset = {kQuestions};
  const EvalResult evaluated = model_.Evaluate(eval);
  const Json metrics = ParseJson(evaluated.decision->metrics, "metrics")["all"];
  ASSERT_EQ(result.figures.size(), 4U);
  for (const TaskFigure& figure : result.figures) {
    EXPECT_EQ(figure.value, metrics[figure.name].get<double>()) << figure.name;
    EXPECT_EQ(figure.higher_is_better, figure.name == "accuracy");
    const std::size_t parts = figure.name == "ece" ? 15 : 1;
    ASSERT_EQ(figure.numerators.size(), 16 * parts) << figure.name;
    // What is drawn again and again gives the figure.
    double sum = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      double of_part = 0;
      for (std::size_t i = part; i < figure.numerators.size(); i += parts) {
        of_part += figure.numerators[i];
      }
      sum += std::abs(of_part);
    }
    EXPECT_NEAR(sum / 32, figure.value, 1e-12) << figure.name;
  }
}

TEST_F(DecisionTaskTest, ASampleHasTheStateAndTheAnswersOfARecord) {
  const TaskResult result = Measure(kQuestions);
  ASSERT_EQ(result.samples.size(), 16U);
  const OrderedJson sample = ParseOrderedJson(result.samples.front(), "sample");
  EXPECT_EQ(sample["doc"], 0);
  EXPECT_EQ(sample["context"], "Once there was a fish. It was happy. It had three hats.");
  ASSERT_EQ(sample["questions"].size(), 3U);
  EXPECT_EQ(sample["questions"][1]["id"], "happy");
  EXPECT_EQ(sample["questions"][1]["target"], OrderedJson({0.0, 1.0}));
  double right = 0;
  for (const OrderedJson& answer : sample["questions"]) right += answer["accuracy"].get<double>();
  EXPECT_EQ(right, result.figures.front().numerators.front());
}

TEST_F(DecisionTaskTest, ADefinitionNamesQuestionsMetricsAndHowTheyAreRead) {
  std::filesystem::copy(kQuestions, folder_.path() / "q.jsonl");
  const std::string task = Write("task.yaml",
                                 "task: hats\noutput_type: decision\n"
                                 "dataset_kwargs: {data_files: {test: q.jsonl}}\n"
                                 "test_split: test\nquestion_types: [noul, score]\n"
                                 "metric_list: [{metric: ece}, {metric: accuracy}]\n");
  const TaskResult result = Measure(task);
  EXPECT_EQ(result.task, "hats");
  EXPECT_EQ(result.figures.front().name, "ece");
  for (const std::string& sample : result.samples) EXPECT_EQ(sample.find("choice"), sample.npos);
  TaskOptions first;
  first.limit = 3;
  EXPECT_EQ(Measure(kQuestions, first).records, 3);
  const std::string brief = Write("brief.yaml",
                                  "output_type: decision\ntest_split: test\n"
                                  "dataset_kwargs: {data_files: q.jsonl}\n");
  EXPECT_EQ(Measure(brief).figures.size(), 4U);
}

TEST_F(DecisionTaskTest, RecordsAreDrawnWithAllTheirQuestions) {
  const TaskResult result = Measure(kQuestions);
  for (const TaskComparison& row : CompareTasks(result, result)) {
    EXPECT_EQ(row.difference, 0) << row.name;
    EXPECT_EQ(row.p, 1) << row.name;
    EXPECT_EQ(row.test, row.name == "accuracy" ? "sign flips" : "bootstrap");
  }
  std::string lines;
  for (const char* answer : {"true", "false"}) {
    lines += std::string(R"({"state": "s", "type": "noul", "instructions": "?", "answer": )") +
             answer + "}\n";
  }
  const TaskResult single = Measure(Write("one.jsonl", lines));
  EXPECT_EQ(CompareTasks(single, single).front().test, "McNemar");
}

TEST_F(DecisionTaskTest, RefusesWhatIsNoDecisionBeforeAModelIsLoaded) {
  const std::string text = Write("text.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  EXPECT_THAT(ErrorOf(text), testing::AllOf(HasSubstr("text.jsonl:1"), HasSubstr("no decision")));
  EXPECT_THAT(
      ErrorOf(Write("open.jsonl", R"({"state": "s", "type": "noul", "instructions": "?"})")),
      HasSubstr("no question of question_types noul, choice, score has an answer"));
  const std::string of_questions =
      "output_type: decision\ntest_split: test\ndataset_kwargs: "
      "{data_files: {test: " +
      kQuestions + "}}\n";
  EXPECT_THAT(ErrorOf(Write("types.yaml", of_questions + "question_types: nowl\n")),
              testing::AllOf(HasSubstr("types.yaml"), HasSubstr("nowl")));
  EXPECT_THAT(ErrorOf(Write("page.yaml", of_questions + "decision_template: nope.jinja\n")),
              testing::AllOf(HasSubstr("page.yaml"), HasSubstr("nope.jinja")));
  TaskOptions shots;
  shots.num_fewshot = 2;
  EXPECT_THAT(ErrorOf(kQuestions, shots), HasSubstr("num_fewshot would have no effect"));
  const std::string keys =
      "output_type: decision\ndataset_kwargs: {data_files: q.jsonl}\ntest_split: test\n";
  std::filesystem::copy(kQuestions, folder_.path() / "q.jsonl");
  EXPECT_THAT(ErrorOf(Write("shots.yaml", keys + "num_fewshot: 2\n")),
              HasSubstr("num_fewshot: is not supported"));
  EXPECT_THAT(ErrorOf(Write("acc.yaml", keys + "metric_list: [{metric: acc}]\n")),
              HasSubstr("acc is no metric of this output_type"));
}

TEST_F(DecisionTaskTest, RefusesOptionsThatChangeNothing) {
  std::filesystem::copy(kQuestions, folder_.path() / "q.jsonl");
  const auto error = [&](const std::string& option, const std::string& data = "q.jsonl") {
    return ErrorOf(Write("idle.yaml",
                         "output_type: decision\ntest_split: test\n"
                         "dataset_kwargs: {data_files: " +
                             data + "}\n" + option + "\n"));
  };
  EXPECT_EQ(error("option_order: given"), "");
  EXPECT_THAT(error("option_order: shuffle"),
              testing::AllOf(HasSubstr("idle.yaml"), HasSubstr("option_order shuffle would")));
  EXPECT_THAT(
      error("max_options: 4"),
      testing::AllOf(HasSubstr("idle.yaml"), HasSubstr("max_options would have no effect")));
  for (const char* option : {"instructions: What?", "label_names: [a, b]", "text_column: body"}) {
    EXPECT_THAT(error(option),
                testing::AllOf(HasSubstr("idle.yaml"), HasSubstr("would have no effect"),
                               HasSubstr("questions and answers in fields of their own")));
  }
  Write("mmlu.jsonl", R"({"question": "q", "choices": ["a", "b"], "answer": 1})");
  EXPECT_EQ(error("instructions: What?", "mmlu.jsonl"), "");
  EXPECT_THAT(error("label_names: [a, b]", "mmlu.jsonl"), HasSubstr("label_names would have"));
  Write("table.jsonl", R"({"text": "q", "label": 1})");
  EXPECT_EQ(error("instructions: What?\nlabel_names: [a, b]", "table.jsonl"), "");
}

// A longer prompt is no reason to leave a record out of one of two models.
TEST_F(DecisionTaskTest, APromptBeyondTheContextIsAnError) {
  std::string state;
  for (int i = 0; i < 3000; ++i) state += "cat ";
  const std::string data =
      Write("long.jsonl", R"({"state": ")" + state +
                              R"(", "type": "noul", "instructions": "?", "answer": true})"
                              "\n");
  try {
    Measure(data);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("long.jsonl:1"), HasSubstr("the context of the model has"),
                               testing::Not(HasSubstr("max_length"))));
  }
}

}  // namespace
}  // namespace qlora
