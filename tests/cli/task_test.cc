// Tasks and the gate as a user meets them: comparisons, samples, what is refused before a model is
// loaded, and what is told when the gate cannot be measured.
#include <gmock/gmock.h>

#include <csignal>

#include "cli/tiny_model.h"
#include "tasks/task_evaluation.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TaskCommandTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    fs::copy(Golden("llama-tiny") / "adapter", scratch_ / "a");
    fs::copy(Golden("llama-tiny") / "adapter", scratch_ / "b");
    std::string lines;
    for (int i = 0; i < 6; ++i) {
      lines += "{\"q\": \"There were " + std::to_string(i) +
               "\", \"answer\": " + std::to_string(i % 2) + "}\n";
    }
    Write("test.jsonl", lines);
    Write("task.yaml",
          "task: bears\ndataset_kwargs: {data_files: {test: test.jsonl}}\ntest_split: test\n"
          "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: [bears, a cow]\n"
          "doc_to_target: answer\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n");
    Write("suite.yaml", "tasks: [{task: task.yaml, max_loss: 1}]\n");
  }

  static std::vector<std::string> EvalWords(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"eval", "model", "--task", "task.yaml", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The message of a training that is refused before anything is written.
  std::string RefusedGate() const { return Refused(TrainWords({"--gate", "suite.yaml"})); }
};

TEST(ModelsOfTest, TakesTheAdaptersOfOneModelTogether) {
  const std::vector<ComparedModel> models = ModelsOf({"a", "b:0.5"}, {"base"});
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[0].name, "a + b:0.5");
  EXPECT_THAT(models[0].adapter, ElementsAre("a", "b:0.5"));
  EXPECT_EQ(models[1].name, "base");
  EXPECT_TRUE(models[1].adapter.empty());
  EXPECT_EQ(ModelsOf({"a"}, {}).front().adapter, std::vector<std::string>{"a"});
  EXPECT_EQ(ModelsOf({}, {"a", "b", "base"}).size(), 3U);
}

TEST(ModelsOfTest, RefusesModelsThatStandBesideNothing) {
  const auto error = [](const std::vector<std::string>& adapter,
                        const std::vector<std::string>& compared) {
    return InputError([&] { ModelsOf(adapter, compared); });
  };
  EXPECT_THAT(error({}, {"a", "a"}), HasSubstr("'a' is named twice"));
  EXPECT_THAT(error({"a"}, {"a"}), HasSubstr("'a' is named twice"));
  EXPECT_THAT(error({}, {"base", "base"}), HasSubstr("'base' is named twice"));
  EXPECT_THAT(error({"a"}, {"b", "base"}), HasSubstr("beside one other model"));
  EXPECT_THAT(error({}, {"a"}), HasSubstr("beside nothing"));
}

TEST_F(TaskCommandTest, SamplesTellTasksAndModelsApart) {
  ASSERT_EQ(Run(EvalWords({"--samples", "one.jsonl"})).code, 0);
  EXPECT_TRUE(ReadAll(scratch_ / "one.jsonl").starts_with("{\"task\":\"bears\",\"doc\":0,"));
  const nlohmann::json both =
      RunJson(EvalWords({"--samples", "two.jsonl", "--compare", "a", "base"}));
  const std::string lines = ReadAll(scratch_ / "two.jsonl");
  EXPECT_TRUE(lines.starts_with("{\"model\":\"a\",\"task\":\"bears\",\"doc\":0,"));
  EXPECT_THAT(lines, HasSubstr("\n{\"model\":\"base\",\"task\":\"bears\",\"doc\":0,"));
  EXPECT_TRUE(both["results"].contains("a") && both["results"].contains("base"));
  EXPECT_EQ(both["compared"]["a"]["bears"].size(), 2U);
}

// The base is held as the adapter's record says, not as it would be alone.
TEST_F(TaskCommandTest, TheBaseHasTheFormOfTheAdapter) {
  ASSERT_EQ(Run(TrainWords({"--load_in_4bit", "false", "--output_dir", "dense"})).code, 0);
  const std::vector<std::string> compared = {"--compare", "base", "dense", "--samples", "s.jsonl"};
  ASSERT_EQ(Run(EvalWords(compared)).code, 0);
  ASSERT_EQ(Run(EvalWords({"--load_in_4bit", "false", "--samples", "base.jsonl"})).code, 0);
  const std::string first = ReadAll(scratch_ / "s.jsonl");
  const std::string alone = ReadAll(scratch_ / "base.jsonl");
  const auto line = [](const std::string& text) {
    nlohmann::json json = nlohmann::json::parse(text.substr(0, text.find('\n')));
    return json["lls"];
  };
  EXPECT_EQ(nlohmann::json::parse(first.substr(0, first.find('\n')))["model"], "base");
  EXPECT_EQ(line(first), line(alone));
}

// The definitions that are installed need no path: here their data are missing.
TEST_F(TaskCommandTest, FindsDefinitionsByTheirNames) {
  EXPECT_THAT(Refused({"eval", "model", "--task", "arc"}),
              AllOf(HasSubstr("arc.yaml"), HasSubstr("--task_data test=FILE")));
  EXPECT_THAT(Refused({"eval", "model", "--task", "arcs"}),
              AllOf(HasSubstr("'arcs' is no file"), HasSubstr("arc, boolq")));
  Write("suite.yaml", "tasks: [{task: boolq}]\n");
  EXPECT_THAT(RefusedGate(), HasSubstr("boolq.yaml"));
}

TEST_F(TaskCommandTest, TakesSeveralTasks) {
  Write("other.yaml", "task: other\ninclude: task.yaml\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"eval", "model", "--task", "task.yaml", "other.yaml"},
        std::vector<std::string>{"eval", "--task", "task.yaml", "other.yaml", "model"},
        std::vector<std::string>{"eval", "--task", "task.yaml,other.yaml", "--limit", "2",
                                 "model"}}) {
    const nlohmann::json json = RunJson(words);
    EXPECT_TRUE(json["results"].contains("bears") && json["results"].contains("other"));
  }
}

TEST_F(TaskCommandTest, RefusesOptionsThatAreNotRead) {
  EXPECT_THAT(Refused(EvalWords({"--per_token"})), HasSubstr("per_token would have no effect"));
  EXPECT_THAT(Refused(EvalWords({"--dataset", "data.jsonl"})), HasSubstr("dataset would have"));
  EXPECT_THAT(Refused(EvalWords({"--predictions", "p.jsonl"})), HasSubstr("predictions would"));
  EXPECT_THAT(Refused({"eval", "model", "data.jsonl", "--num_fewshot", "2"}),
              HasSubstr("num_fewshot would have no effect without --task"));
  EXPECT_THAT(Refused({"eval", "--from_predictions", "p.jsonl", "--adapter", "a"}),
              HasSubstr("adapter would have no effect with --from_predictions"));
}

// A model that is not there would be named, were it looked for first.
TEST_F(TaskCommandTest, ChecksTasksBeforeTheModelIsLoaded) {
  std::vector<std::string> words = EvalWords({"--task_data", "train=test.jsonl"});
  words[1] = "missing";
  EXPECT_THAT(Refused(words), AllOf(HasSubstr("no task reads a split"), Not(HasSubstr("missing"))));
  words = EvalWords({"--compare", "a", "a"});
  words[1] = "missing";
  EXPECT_THAT(Refused(words), HasSubstr("'a' is named twice"));
  EXPECT_THAT(Refused({"eval", "missing", "data.jsonl", "--ece_bins", "0"}),
              HasSubstr("ece_bins: expected"));
  EXPECT_THAT(Refused({"eval", "missing", "data.jsonl", "--decision_temperature", "noul=0"}),
              HasSubstr("above 0"));
  EXPECT_THAT(Refused({"calibrate", "missing", "data.jsonl", "--min_questions", "0"}),
              HasSubstr("min_questions"));
}

TEST_F(TaskCommandTest, ANumberThatIsNoneIsAnError) {
  EditWeights([](SafetensorsParts& parts) {
    // The largest float32, which is finite; its products are not.
    const nlohmann::json& place = parts.header["model.norm.weight"]["data_offsets"];
    for (auto at = place[0].get<std::size_t>(); at < place[1].get<std::size_t>(); at += 4) {
      parts.data.replace(at, 4, "\xFF\xFF\x7F\x7F");
    }
  });
  const Outcome outcome = Run(EvalWords());
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the log-probability of a text is"));
}

TEST_F(TaskCommandTest, TheGateIsCheckedBeforeARun) {
  Write("suite.yaml", "tasks: [{task: task.yaml, figure: f1}]\n");
  EXPECT_THAT(RefusedGate(), HasSubstr("found 'f1'"));
  for (const char* verb : {"validate", "plan"}) {
    EXPECT_THAT(Refused({verb, "base.yaml", "--gate", "suite.yaml"}), HasSubstr("found 'f1'"));
  }
  EXPECT_THAT(Refused(TrainWords({"--dry_run", "--gate", "suite.yaml"})), HasSubstr("found 'f1'"));
}

TEST_F(TaskCommandTest, TheResultIsToldBeforeTheGate) {
  const Outcome outcome = Run(TrainWords({"--gate", "suite.yaml"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::size_t saved = outcome.err.find("adapter saved in out");
  ASSERT_NE(saved, std::string::npos) << outcome.err;
  EXPECT_LT(saved, outcome.err.find("gate: bears acc"));
  const nlohmann::json gate = nlohmann::json::parse(ReadAll(scratch_ / "out/gate.json"));
  EXPECT_EQ(gate["passed"], true);
  EXPECT_EQ(gate["tasks"][0]["task"], "bears");
}

// The data vanish while the run goes on: the adapter is saved, and scripts are told so.
TEST_F(TaskCommandTest, AGateThatCannotBeMeasuredLeavesTheResult) {
  const auto remove = [&](pid_t program) {
    WaitUntil(program, [&] { return fs::exists(scratch_ / "out/train_log.jsonl"); });
    fs::remove(scratch_ / "test.jsonl");
  };
  const Outcome outcome = RunQlora(
      scratch_, TrainWords({"--gate", "suite.yaml", "--max_steps", "300", "--json"}), "", remove);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["ok"], false);
  EXPECT_EQ(result["adapter_dir"], "out");
  EXPECT_THAT(result["error"].get<std::string>(),
              AllOf(HasSubstr("is saved, but not measured"), HasSubstr("test.jsonl")));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));
}

TEST_F(TaskCommandTest, CtrlCEndsTheGate) {
  // Long enough that the signal comes while answers are generated.
  Write("task.yaml",
        "task: bears\ndataset_kwargs: {data_files: {test: test.jsonl}}\ntest_split: test\n"
        "doc_to_text: q\ndoc_to_target: '{{answer}}'\n"
        "generation_kwargs: {until: [], max_gen_toks: 100000}\n"
        "metric_list: [{metric: exact_match}]\n");
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"q\": \"There were\", \"answer\": 1}\n";
  Write("test.jsonl", lines);
  const auto interrupt = [&](pid_t program) {
    WaitUntil(program, [&] {
      return ReadAll(scratch_ / ".stderr").find("to try it:") != std::string::npos;
    });
    kill(program, SIGINT);
  };
  const Outcome outcome =
      RunQlora(scratch_, TrainWords({"--gate", "suite.yaml", "--json"}), "", interrupt);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["adapter_dir"], "out");
  EXPECT_THAT(outcome.err, HasSubstr("is not measured by suite.yaml"));
}

}  // namespace
}  // namespace qlora
