#include "task/task_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TaskFileTest : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }
  std::string ErrorOf(const std::string& text) {
    try {
      ReadTaskFile(Write("task.yaml", text));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

constexpr const char* kTask = R"(task: t
dataset_kwargs:
  data_files: {test: a.jsonl, dev: [b.jsonl, c.jsonl]}
test_split: test
fewshot_split: dev
output_type: multiple_choice
doc_to_text: q
doc_to_choice: ["A", "B"]
doc_to_target: answer
metric_list:
  - metric: acc
)";

TEST_F(TaskFileTest, ReadsADefinitionAndWhatItIncludes) {
  Write("base.yaml", kTask);
  for (const char* data : {"a.jsonl", "b.jsonl", "c.jsonl"}) Write(data, "");
  const TaskFile task = ReadTaskFile(
      Write("task.yaml", "include: base.yaml\ntask: other\nfewshot_config: {sampler: first_n}\n"));
  EXPECT_EQ(task.name, "other");
  EXPECT_EQ(task.kind, TaskKind::kMultipleChoice);
  EXPECT_TRUE(task.first_n);
  EXPECT_EQ(SplitNamed(task, "dev").files.size(), 2U);
  EXPECT_EQ(SplitNamed(task, "test").files.front(), folder_.path() / "a.jsonl");
  EXPECT_EQ(task.target_delimiter, " ");
  EXPECT_EQ(task.fewshot_delimiter, "\n\n");
}

TEST_F(TaskFileTest, TakesExamplesFromTheFirstSplitThatIsNotMeasured) {
  const auto split = [&](const std::string& lines) {
    return ReadTaskFile(Write("task.yaml", lines + "metric_list: [{metric: exact_match}]\n"))
        .fewshot_split;
  };
  const std::string all = "test_split: a\nvalidation_split: b\ntraining_split: c\n";
  EXPECT_EQ(split(all), "c");
  EXPECT_EQ(split(all + "fewshot_split: d\n"), "d");
  EXPECT_EQ(split("test_split: a\nvalidation_split: b\n"), "b");
  EXPECT_EQ(split("validation_split: b\n"), "b");
  EXPECT_EQ(split("test_split: a\n"), "a");
}

TEST_F(TaskFileTest, NamesFiguresByMetricAndFilter) {
  EXPECT_THAT(FigureNames(ReadTaskFile(Write("task.yaml", kTask))), ElementsAre("acc"));
  const std::string two =
      "test_split: a\nfilter_list:\n  - {name: x, filter: []}\n  - {name: y, filter: []}\n"
      "metric_list: [{metric: exact_match}, {metric: f1}]\n";
  EXPECT_THAT(FigureNames(ReadTaskFile(Write("task.yaml", two))),
              ElementsAre("exact_match,x", "f1,x", "exact_match,y", "f1,y"));
}

TEST_F(TaskFileTest, WithoutMetricsTheUsualOnesAreMeasured) {
  const auto figures = [&](const std::string& lines) {
    return FigureNames(ReadTaskFile(Write("task.yaml", "test_split: a\n" + lines)));
  };
  EXPECT_THAT(figures(""), ElementsAre("exact_match"));
  EXPECT_THAT(figures("output_type: generate_until\nmetric_list: null\n"),
              ElementsAre("exact_match"));
  EXPECT_THAT(figures("output_type: multiple_choice\n"), ElementsAre("acc", "acc_norm"));
  EXPECT_THAT(figures("output_type: loglikelihood_rolling\n"),
              ElementsAre("word_perplexity", "byte_perplexity", "bits_per_byte"));
  EXPECT_THAT(figures("output_type: decision\n"),
              ElementsAre("accuracy", "log_loss", "brier", "ece"));
  for (const char* list : {"metric_list: []\n", "metric_list: acc\n"}) {
    EXPECT_THAT(ErrorOf(std::string("test_split: a\n") + list), HasSubstr("metric_list: expected"));
  }
  // Instructions are judged by what the definition names.
  EXPECT_THAT(ErrorOf("task: ifeval\ntest_split: a\nprocess_results: !function utils.f\n"),
              HasSubstr("metric_list: expected"));
}

TEST_F(TaskFileTest, RefusesMetricsThatAreOthersThanTheseOnes) {
  const auto error = [&](const std::string& metric, const std::string& more = "") {
    return ErrorOf("test_split: a\n" + more + "metric_list: [" + metric + "]\n");
  };
  EXPECT_EQ(error("{metric: exact_match, aggregation: mean, higher_is_better: true}"), "");
  EXPECT_THAT(error("{metric: acc}"), HasSubstr("acc is no metric of this output_type"));
  EXPECT_THAT(error("{metric: exact_match}", "output_type: multiple_choice\n"),
              HasSubstr("exact_match is no metric"));
  EXPECT_THAT(error("{metric: f1, aggregation: median}"),
              HasSubstr("f1 is put together by 'mean'"));
  EXPECT_THAT(error("{metric: f1, higher_is_better: false}"), HasSubstr("higher_is_better"));
  EXPECT_THAT(error("{metric: f1}, {metric: f1}"), HasSubstr("f1 is given twice"));
  EXPECT_THAT(error("{metric: f1, ignore_case: true}"), HasSubstr("'ignore_case'"));
  EXPECT_THAT(error("{metric: exact_match, ignorecase: true}"), HasSubstr("'ignorecase'"));
  EXPECT_THAT(error("{metric: exact_match, regexes_to_ignore: ['(']}"), HasSubstr("regular"));
  EXPECT_THAT(error("{metric: prompt_level_strict_acc}"), HasSubstr("no metric"));
}

TEST_F(TaskFileTest, RefusesFiltersThatAreOthersThanTheseOnes) {
  const auto error = [&](const std::string& filters, const std::string& more = "") {
    return ErrorOf("test_split: a\n" + more + "filter_list: [" + filters +
                   "]\nmetric_list: [{metric: exact_match}]\n");
  };
  EXPECT_EQ(error("{name: x, filter: [{function: take_first}]}"), "");
  EXPECT_THAT(error("{name: x, filters: []}"), HasSubstr("'filters'"));
  EXPECT_THAT(error("{name: x, filter: [{function: regex, pattern: a}]}"), HasSubstr("'pattern'"));
  EXPECT_THAT(error("{name: x, filter: [{function: regex, regex_pattern: '('}]}"),
              HasSubstr("regular expression"));
  EXPECT_THAT(error("{name: x, filter: [{function: lowercase, fallback: a}]}"),
              HasSubstr("lowercase has no settings"));
  EXPECT_THAT(error("{name: x, filter: []}, {name: x, filter: []}"), HasSubstr("are named 'x'"));
  EXPECT_THAT(error("{name: x, filter: []}", "output_type: loglikelihood_rolling\n"),
              HasSubstr("answers that are generated"));
}

TEST_F(TaskFileTest, RefusesByNameWhatItDoesNotDo) {
  const std::string task = kTask;
  EXPECT_THAT(ErrorOf(task + "doc_to_image: x\n"), HasSubstr("doc_to_image: is not supported"));
  EXPECT_THAT(ErrorOf(task + "process_results: !function utils.process_results\n"),
              HasSubstr("process_results: calls utils.process_results, a function of Python"));
  EXPECT_THAT(ErrorOf(task + "process_docs: !function utils.process_docs\n"),
              HasSubstr("only that of hellaswag"));
  EXPECT_THAT(ErrorOf(task + "repeats: 3\n"), HasSubstr("repeats"));
  EXPECT_THAT(ErrorOf(task + "generation_kwargs: {do_sample: true}\n"),
              HasSubstr("generation_kwargs.do_sample"));
  EXPECT_THAT(ErrorOf("task: t\ntest_split: test\nmetric_list:\n  - metric: bleu\n"),
              HasSubstr("the metric 'bleu' is not supported"));
  EXPECT_THAT(ErrorOf("include: task.yaml\n"), HasSubstr("include one another"));
}

}  // namespace
}  // namespace qlora
