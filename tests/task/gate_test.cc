#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "qlora/error.h"
#include "qlora/tasks.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

class GateSuiteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.Write("data.jsonl", "{\"q\":\"one\",\"a\":\"1\"}\n{\"q\":\"two\",\"a\":\"2\"}\n");
    folder_.Write("answers.yaml",
                  "task: answers\ndataset_kwargs: {data_files: {test: data.jsonl}}\n"
                  "test_split: test\ndoc_to_text: q\ndoc_to_target: '{{a}}'\n"
                  "filter_list:\n"
                  "  - {name: strict, filter: [{function: take_first}]}\n"
                  "  - {name: loose, filter: [{function: lowercase}]}\n"
                  "metric_list:\n  - metric: exact_match\n  - metric: f1\n");
  }
  GateSuite Read(const std::string& keys) {
    return ReadGateSuite(
        folder_.Write("suite.yaml", "tasks:\n  - {task: answers.yaml" + keys + "}\n").string());
  }
  std::string ErrorOf(const std::string& keys) {
    try {
      Read(keys);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(GateSuiteTest, NamesTheFiguresThatATaskGives) {
  EXPECT_EQ(Read("").tasks.front().figure, "exact_match,strict");
  EXPECT_EQ(Read(", figure: 'f1,loose'").tasks.front().figure, "f1,loose");
  EXPECT_THAT(ErrorOf(", figure: f1"), HasSubstr("f1,strict"));
  EXPECT_THAT(ErrorOf(", figure: acc"), HasSubstr("found 'acc'"));
}

TEST_F(GateSuiteTest, RefusesLimitsThatAreNone) {
  EXPECT_THAT(ErrorOf(", max_loss: -1"), HasSubstr("max_loss"));
  EXPECT_THAT(ErrorOf(", max_loss: .nan"), HasSubstr("max_loss"));
  EXPECT_THAT(ErrorOf(", p: 0"), HasSubstr("p: "));
  EXPECT_THAT(ErrorOf(", limit: 1.5"), HasSubstr("limit"));
  EXPECT_THAT(ErrorOf(", num_fewshot: -1"), HasSubstr("num_fewshot"));
  EXPECT_THAT(ErrorOf(", limits: 1"), HasSubstr("limits"));
}

// The suite's data are read with it.
TEST_F(GateSuiteTest, NamesAWrongRecord) {
  folder_.Write("data.jsonl", "{\"q\":\"one\",\"a\":\"1\"}\n{\"q\":\"two\"}\n");
  EXPECT_THAT(ErrorOf(""), HasSubstr("data.jsonl:2"));
}

TaskResult Counted(std::vector<double> hits) {
  TaskResult result;
  result.task = "t";
  result.records = std::ssize(hits);
  TaskFigure& figure = result.figures.emplace_back();
  figure.name = "acc";
  figure.denominators.assign(hits.size(), 1.0);
  for (std::size_t i = 0; i < hits.size(); ++i) result.samples.push_back(std::to_string(i));
  figure.numerators = std::move(hits);
  return result;
}

GateVerdict Judged(const GateTask& task, const TaskResult& base, const TaskResult& adapter) {
  return JudgeGate({"", {task}}, {base}, {adapter}).front();
}

TEST(GateVerdictTest, CallsLostWhatIsLargeAndNoChance) {
  const GateTask task{.path = "", .figure = "acc", .max_loss = 0.1, .p = 0.05, .options = {}};
  const TaskResult base = Counted(std::vector<double>(10, 1.0));
  std::vector<double> hits(10, 0.0);
  GateVerdict verdict = Judged(task, base, Counted(hits));
  EXPECT_TRUE(verdict.lost);
  EXPECT_EQ(verdict.examples.size(), 3U);
  EXPECT_EQ(verdict.examples.front(), "0");
  // The same loss is allowed, or may be chance.
  EXPECT_FALSE(Judged({"", "acc", 1.0, 0.05, {}}, base, Counted(hits)).lost);
  EXPECT_FALSE(Judged({"", "acc", 0.1, 0.001, {}}, base, Counted(hits)).lost);
  EXPECT_FALSE(verdict.by_chance);
  verdict = Judged({"", "acc", 0.1, 0.01, {}}, base, Counted({1, 1, 1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_FALSE(verdict.lost);
  EXPECT_TRUE(verdict.by_chance);
  EXPECT_FALSE(Judged(task, base, base).by_chance);
  EXPECT_FALSE(Judged(task, base, base).lost);
}

TEST(GateVerdictTest, CallsLostWhatIsNoNumber) {
  TaskResult base = Counted({1, 2, 3});
  TaskResult adapter = base;
  for (TaskResult* result : {&base, &adapter}) {
    result->figures.front().is_mean = false;
    result->figures.front().higher_is_better = false;
  }
  adapter.figures.front().numerators[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(Judged({"", "acc", 0.5, 0.05, {}}, base, adapter).lost);
}

}  // namespace
}  // namespace qlora
