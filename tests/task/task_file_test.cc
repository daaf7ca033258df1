#include "task/task_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

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

TEST_F(TaskFileTest, RefusesByNameWhatItDoesNotDo) {
  const std::string task = kTask;
  EXPECT_THAT(ErrorOf(task + "doc_to_image: x\n"), HasSubstr("doc_to_image: is not supported"));
  EXPECT_THAT(ErrorOf(task + "process_results: !function utils.process_results\n"),
              HasSubstr("process_results: calls a function of Python"));
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
