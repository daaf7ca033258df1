#include "qlora/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "io/json.h"
#include "model/base_record.h"
#include "model/golden.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

ModelOptions InFloat(const std::filesystem::path& model) {
  ModelOptions options;
  options.model_name_or_path = model.string();
  options.load_in_4bit = "false";
  options.compute_dtype = "float32";
  return options;
}

// A continuation has the same score beside others as alone, to the rounding of float32.
TEST(ScoreTest, ComputesAContextOnceForAllContinuations) {
  Context context(2);
  Model model = Model::Load(context, InFloat(kGoldenDir / "llama-tiny"));
  const std::vector<ScoreRequest> together = {{{1, 5, 9, 12, 7}, {{3}, {4, 8, 2}, {3, 3}}},
                                              {{6}, {{2, 2}, {9}}}};
  std::vector<ScoreRequest> apart;
  for (const ScoreRequest& request : together) {
    for (const auto& tokens : request.continuations) apart.push_back({request.context, {tokens}});
  }
  const auto shared = model.Score(together);
  const auto alone = model.Score(apart);
  std::size_t next = 0;
  for (const auto& scores : shared) {
    for (const ContinuationScore& score : scores) {
      const ContinuationScore& other = alone[next++].front();
      EXPECT_NEAR(score.logprob, other.logprob, 1e-4 * std::abs(other.logprob));
      EXPECT_EQ(score.is_greedy, other.is_greedy);
      EXPECT_EQ(score.tokens, other.tokens);
    }
  }
  EXPECT_EQ(next, alone.size());
}

TEST(ScoreTest, ReadsTheEndOfWhatIsTooLong) {
  Context context(1);
  Model model = Model::Load(context, InFloat(kGoldenDir / "llama-tiny"));
  const std::int64_t limit = model.context_length();
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < limit + 5; ++i)
    tokens.push_back(static_cast<std::int32_t>(i % 11 + 1));
  const std::vector<std::int32_t> end(tokens.begin() + 6, tokens.end());
  const auto scores = model.Score(std::vector<ScoreRequest>{{tokens, {{3, 4}}}, {end, {{3, 4}}}});
  EXPECT_EQ(scores[0].front().logprob, scores[1].front().logprob);
}

TEST(ScoreTest, RefusesWhatItCannotScore) {
  Context context(1);
  Model model = Model::Load(context, InFloat(kGoldenDir / "llama-tiny"));
  const auto score = [&](const ScoreRequest& request) { return model.Score({&request, 1}); };
  EXPECT_THROW(score({{}, {{1}}}), Error);
  EXPECT_THROW(score({{1}, {{}}}), Error);
  EXPECT_THROW(score({{1}, {}}), Error);
  EXPECT_THROW(score({{1 << 30}, {{1}}}), Error);
}

// The base beside an adapter is held as the adapter's record says.
TEST(BaseOptionsTest, LoadTheBaseInTheFormOfTheAdapter) {
  const std::filesystem::path model = kGoldenDir / "llama-tiny";
  TemporaryFolder folder;
  std::filesystem::copy(model / "adapter", folder.path() / "adapter");
  BaseRecord record;
  record.load_in_4bit = false;
  SaveBaseRecord(folder.path() / "adapter", record);
  Context context(1);
  ModelOptions options;
  options.model_name_or_path = model.string();
  EXPECT_EQ(Model::Load(context, options).base_options().load_in_4bit, "true");
  options.adapter = {(folder.path() / "adapter").string()};
  const ModelOptions base = Model::Load(context, options).base_options();
  EXPECT_EQ(base.load_in_4bit, "false");
  EXPECT_TRUE(base.adapter.empty());
  EXPECT_EQ(Model::Load(context, base).base_options().load_in_4bit, "false");
}

class TaskTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
    return (folder_.path() / name).string();
  }

  TemporaryFolder folder_;
  Context context_{2};
};

constexpr const char* kChoices = R"(task: letters
dataset_kwargs:
  data_files: {test: test.jsonl}
test_split: test
output_type: multiple_choice
num_fewshot: 1
description: "Letters.\n"
doc_to_text: "{{q}}"
doc_to_choice: ["b", "c d"]
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
)";

TEST_F(TaskTest, LeavesTheRecordItselfOutOfItsExamples) {
  Write("test.jsonl", "{\"q\":\"one\",\"answer\":0}\n{\"q\":\"two\",\"answer\":1}\n");
  const std::string task = Write("task.yaml", kChoices);
  Model model = Model::Load(context_, InFloat(kGoldenDir / "llama-tiny"));
  const TaskResult result = EvaluateTask(model, task, {});
  ASSERT_EQ(result.records, 2);
  EXPECT_EQ(ParseJson(result.samples[0], "sample")["context"], "Letters.\ntwo c d\n\none");
  EXPECT_EQ(ParseJson(result.samples[1], "sample")["context"], "Letters.\none b\n\ntwo");
  for (const TaskComparison& row : CompareTasks(result, result)) {
    EXPECT_EQ(row.difference, 0);
    EXPECT_EQ(row.p, 1);
    EXPECT_EQ(row.test, "McNemar");
  }
}

TEST_F(TaskTest, BeginsSamplesWithTheTask) {
  Write("test.jsonl", "{\"q\":\"one\",\"answer\":0}\n{\"q\":\"two\",\"answer\":1}\n");
  const std::string task = Write("task.yaml", kChoices);
  Model model = Model::Load(context_, InFloat(kGoldenDir / "llama-tiny"));
  const TaskResult result = EvaluateTask(model, task, {});
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    EXPECT_THAT(result.samples[i],
                testing::StartsWith("{\"task\":\"letters\",\"doc\":" + std::to_string(i)));
  }
}

TEST_F(TaskTest, ChecksTasksWithoutAModel) {
  const std::string data = Write("test.jsonl", "{\"q\":\"one\",\"answer\":0}\n");
  Write("other.jsonl", "{\"q\":\"one\",\"answer\":7}\n");
  TaskOptions options;
  options.task = {Write("task.yaml", kChoices)};
  options.num_fewshot = 0;
  CheckTasks(options);
  const auto error = [](const TaskOptions& wrong) {
    try {
      CheckTasks(wrong);
    } catch (const Error& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  TaskOptions wrong = options;
  wrong.task_data = {"train=" + data};
  EXPECT_THAT(error(wrong), testing::HasSubstr("no task reads a split 'train'"));
  wrong.task_data = {"test=" + (folder_.path() / "other.jsonl").string()};
  EXPECT_THAT(error(wrong), testing::HasSubstr("other.jsonl:1"));
  wrong.task_data = {"test=" + (folder_.path() / "none.parquet").string()};
  EXPECT_THAT(error(wrong), testing::AllOf(testing::HasSubstr("task.yaml: the split 'test'"),
                                           testing::HasSubstr("none.parquet, which is not there"),
                                           testing::HasSubstr("--task_data test=FILE")));
  wrong = options;
  wrong.task.push_back(wrong.task.front());
  EXPECT_THAT(error(wrong), testing::HasSubstr("two definitions are named 'letters'"));
  wrong = options;
  wrong.num_fewshot = -2;
  EXPECT_THAT(error(wrong), testing::HasSubstr("num_fewshot"));
  wrong = options;
  wrong.limit = -1;
  EXPECT_THAT(error(wrong), testing::HasSubstr("limit"));
}

TEST_F(TaskTest, NamesTheRecordOfAnError) {
  const std::string data =
      Write("other.jsonl", "{\"q\":\"one\",\"answer\":0}\n{\"q\":\"two\",\"answer\":7}\n");
  const std::string task = Write("task.yaml", kChoices);
  Model model = Model::Load(context_, InFloat(kGoldenDir / "llama-tiny"));
  TaskOptions options;
  options.task_data = {"test=" + data};
  try {
    EvaluateTask(model, task, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("other.jsonl:2"));
    EXPECT_THAT(error.what(), testing::HasSubstr("7 is none of the 2 choices"));
  }
}

// Figures of a real small model in float64, by the rules of lm-evaluation-harness.
struct Golden {
  const char* task;
  const char* result;
  std::int64_t num_fewshot = -1;
  std::int64_t seed = 1234;
  bool bos = false;
};

class GoldenTask : public testing::TestWithParam<Golden> {};

TEST_P(GoldenTask, GivesTheFiguresOfFloat64) {
  const std::filesystem::path folder = kGoldenDir / "tasks";
  const std::filesystem::path path = kGoldenDir / "preference" / "stories260K-hf";
  const Json golden = ReadJsonFile(folder / GetParam().result);
  Context context(2);
  Model model = Model::Load(context, InFloat(path));
  TaskOptions options;
  options.num_fewshot = GetParam().num_fewshot;
  options.fewshot_seed = GetParam().seed;
  options.add_bos_token = GetParam().bos;
  const TaskResult result = EvaluateTask(model, folder / GetParam().task, options);
  const Json& wanted = golden["results"];
  EXPECT_EQ(result.records, wanted["n"]);
  for (const TaskFigure& figure : result.figures) {
    EXPECT_NEAR(figure.value, wanted[figure.name].get<double>(), 1e-5 * figure.value)
        << figure.name;
    if (!figure.is_mean) continue;
    EXPECT_NEAR(figure.standard_error, wanted[figure.name + "_stderr"].get<double>(), 1e-12);
  }
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    const Json sample = ParseJson(result.samples[i], "sample");
    const Json& other = golden["samples"][i];
    for (const auto& [key, value] : other.items()) {
      if (key == "margin") continue;
      const bool unsure = other.value("margin", 1.0) < 1e-3;
      if (unsure) break;
      if (key == "lls") {
        for (std::size_t k = 0; k < value.size(); ++k) {
          EXPECT_NEAR(sample[key][k].get<double>(), value[k].get<double>(), 2e-4) << i;
        }
      } else if (key == "ll") {
        EXPECT_NEAR(sample[key].get<double>(), value.get<double>(), 1e-3) << i;
      } else {
        EXPECT_EQ(sample[key], value) << i << " " << key;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tasks, GoldenTask,
    testing::Values(Golden{"arc_like.yaml", "arc_like.json"},
                    Golden{"arc_like.yaml", "arc_like.bos.json", -1, 1234, true},
                    Golden{"mmlu_like.yaml", "mmlu_like.json"},
                    Golden{"mmlu_like.yaml", "mmlu_like.4x7.json", 4, 7},
                    Golden{"mmlu_like.yaml", "mmlu_like.bos.json", -1, 1234, true},
                    Golden{"ppl.yaml", "ppl.json"}, Golden{"exact.yaml", "exact.json"},
                    Golden{"exact.yaml", "exact.bos.json", -1, 1234, true}));

}  // namespace
}  // namespace qlora
