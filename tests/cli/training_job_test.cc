// A run of training from end to end on a tiny model.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class TrainingJobTest : public TinyModelTest {
 protected:
  std::vector<nlohmann::json> Log(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(scratch_ / run / "train_log.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
};

TEST_F(TrainingJobTest, TrainsAndUsesTheAdapter) {
  const Words base = {"eval", "model", "data.jsonl", "--max_length", "64"};
  const nlohmann::json before = RunJson(base);
  const Outcome outcome = Run(TrainWords({"--max_steps=30", "--lr", "0.01"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("step=30/30 "));
  EXPECT_THAT(outcome.err, HasSubstr("adapter saved in out\n"));
  EXPECT_THAT(outcome.LastErrorLine(), StartsWith("to try it: qlora generate model"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_config.json"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));

  const std::vector<nlohmann::json> log = Log("out");
  ASSERT_EQ(log.size(), 30u);
  for (const char* key : {"loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second",
                          "limit_share", "memory"}) {
    EXPECT_TRUE(log[0].contains(key)) << key << " in " << log[0];
  }
  // How near depends on the machine.
  EXPECT_GT(log[0].at("limit_share").get<double>(), 0);
  EXPECT_LT(log[29].at("loss").get<double>(), log[0].at("loss").get<double>());

  Words adapted = base;
  adapted.insert(adapted.end(), {"--adapter", "out"});
  const nlohmann::json after = RunJson(adapted);
  EXPECT_LT(after.at("loss").get<double>(), before.at("loss").get<double>());
  EXPECT_NEAR(after.at("perplexity").get<double>(), std::exp(after.at("loss").get<double>()),
              1e-9 * after.at("perplexity").get<double>());
  EXPECT_EQ(after.at("tokens"), before.at("tokens"));

  adapted.push_back("--per_token");
  const nlohmann::json tokens = RunJson(adapted);
  ASSERT_EQ(tokens.at("logprobs").size(), tokens.at("tokens").get<std::size_t>());
  double sum = 0;
  for (const nlohmann::json& logprob : tokens.at("logprobs")) sum -= logprob.get<double>();
  const double mean = sum / tokens.at("tokens").get<double>();
  EXPECT_NEAR(mean, tokens.at("loss").get<double>(), 1e-9 * mean);
}

TEST_F(TrainingJobTest, TheSameCommandGivesTheSameAdapter) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  const std::string first = ReadAll(scratch_ / "out/adapter_model.safetensors");
  ASSERT_EQ(Run(TrainWords({"--overwrite"})).code, 0);
  EXPECT_TRUE(first == ReadAll(scratch_ / "out/adapter_model.safetensors"));
}

TEST_F(TrainingJobTest, YamlAndFlagsAreTheSame) {
  ASSERT_EQ(Run(TrainWords({"--lr", "0.01"})).code, 0);
  const std::string yaml = ReadAll(scratch_ / "out/adapter_model.safetensors");
  const Outcome flags =
      Run({"train", "--base-model", "model", "--datasets=data.jsonl", "type=text", "--output-dir",
           "out2", "max_steps=2", "--sequence_len", "64", "--rank", "4", "--no-packing",
           "--compute-dtype=float32", "--threads", "1", "--learning_rate=1e-2"});
  ASSERT_EQ(flags.code, 0) << flags.err;
  EXPECT_TRUE(yaml == ReadAll(scratch_ / "out2/adapter_model.safetensors"));
}

TEST_F(TrainingJobTest, KeepsTheQuantizedBaseForLaterRuns) {
  const Words first = TrainWords({"--save_quantized", "kept", "--output_dir", "first"});
  const Outcome made = Run(first);
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("quantized base written"));
  const auto when = fs::last_write_time(scratch_ / "kept" / "model.safetensors");
  const Outcome used = Run(TrainWords({"--save_quantized", "kept", "--output_dir", "second"}));
  ASSERT_EQ(used.code, 0) << used.err;
  EXPECT_EQ(fs::last_write_time(scratch_ / "kept" / "model.safetensors"), when);
  ASSERT_EQ(Run(TrainWords({"--output_dir", "direct"})).code, 0);
  for (const char* run : {"first", "second"}) {
    EXPECT_EQ(ReadAll(scratch_ / run / "adapter_model.safetensors"),
              ReadAll(scratch_ / "direct" / "adapter_model.safetensors"));
  }
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "kept", "--scale_search"})),
              HasSubstr("scale_search"));
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "model"})), HasSubstr("not made by"));
  fs::last_write_time(scratch_ / "model" / "model.safetensors", when + std::chrono::hours(1));
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "kept"})), HasSubstr("something else"));
}

// ChatML needs its two tokens, which this model does not know.
TEST_F(TrainingJobTest, ConversationsWithoutATemplateAreAdvisedOfOneThatFits) {
  Write("chat.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
        "\"assistant\", \"content\": \"Hello\"}]}\n");
  EXPECT_THAT(Refused(TrainWords({"--dataset", "chat.jsonl"})),
              HasSubstr("set chat_template to plain, or to a Jinja file"));
}

// The result as one object, and everything else where it was.
TEST_F(TrainingJobTest, TheResultOfARunAsJson) {
  const Outcome trained = Run(TrainWords({"--json"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const nlohmann::json run = nlohmann::json::parse(trained.out);
  EXPECT_EQ(run.at("ok"), true);
  EXPECT_EQ(run.at("adapter_dir"), "out");
  EXPECT_EQ(run.at("train_steps"), 2);
  EXPECT_GT(run.at("train_loss"), 0);
  EXPECT_GT(run.at("trained_tokens"), 0);
  // MemoryTest compares it with the plan, for models of which the program is not the largest part:
  // how much of its file is in memory is a matter of the machine.
  EXPECT_GT(run.at("peak_memory_bytes"), 0);
  EXPECT_FALSE(run.at("interrupted").get<bool>());
  EXPECT_THAT(trained.LastErrorLine(), "to try it: " + run.at("to_try_it").get<std::string>());
  EXPECT_THAT(trained.err, HasSubstr("step=2/2"));
  const nlohmann::json more = RunJson({"resume", "out", "--max_steps=3"});
  EXPECT_EQ(more.at("ok"), true);
  EXPECT_EQ(more.at("train_steps"), 3);
  EXPECT_EQ(more.at("resumed_step"), 2);
  EXPECT_EQ(nlohmann::json::parse(Run({"resume", "out", "--json"}).out).at("ok"), false);
  const nlohmann::json page = RunJson({"report", "out", "--out", "page.html"});
  EXPECT_EQ(page.at("ok"), true);
  EXPECT_EQ(page.at("file"), "page.html");
  EXPECT_EQ(page.at("runs")[0].at("damaged_lines"), 0);
  EXPECT_TRUE(RunJson(TrainWords({"--dry-run", "--output_dir=new"})).at("ok").get<bool>());
}

// One object that says both: the run failed, and its result.
TEST_F(TrainingJobTest, ADivergedRunKeepsItsResultInJson) {
  const Outcome diverged = Run(TrainWords({"--json", "--max_steps=4", "--lr", "1e30"}));
  ASSERT_EQ(diverged.code, 1) << diverged.err;
  const nlohmann::json run = nlohmann::json::parse(diverged.out);
  EXPECT_EQ(run.at("ok"), false);
  EXPECT_EQ(run.at("exit_code"), 1);
  EXPECT_THAT(run.at("error").get<std::string>(), HasSubstr("NaN or Inf"));
  EXPECT_EQ(run.at("adapter_dir"), "out");
  EXPECT_EQ(run.at("train_steps"), 4);
  EXPECT_GT(run.at("skipped_steps"), 0);
}

TEST_F(TrainingJobTest, PlansWithoutWriting) {
  const auto before = Everything();
  const nlohmann::json plan = RunJson({"plan", "base.yaml"});
  std::size_t sum = 0;
  for (const nlohmann::json& bytes : plan.at("memory").at("parts")) sum += bytes.get<std::size_t>();
  EXPECT_GT(sum, 0u);
  EXPECT_GE(plan.at("memory").at("peak"), plan.at("memory").at("train_peak"));
  const Outcome text = Run({"plan", "base.yaml"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("\n  peak "));
  EXPECT_EQ(text.out.back(), '\n');
  const Outcome tight = Run({"plan", "base.yaml", "--max_memory", "1MB"});
  EXPECT_EQ(tight.code, 3) << tight.err;
  EXPECT_THAT(tight.out, HasSubstr("\n  peak ")) << "the plan that does not fit is shown";
  EXPECT_TRUE(before == Everything());
}

TEST_F(TrainingJobTest, ARunThatGotWorseFailsAndLeavesItsAdapter) {
  ASSERT_EQ(Run(TrainWords({"--max_steps=60", "--lr=0.03"})).code, 0);
  const Outcome ruined = Run(TrainWords({"--adapter", "out", "--output_dir", "ruined",
                                         "--max_steps=24", "--lr=5", "--logging_steps=9"}));
  EXPECT_EQ(ruined.code, 1) << ruined.err;
  EXPECT_THAT(ruined.err, HasSubstr("warning: the learning rate makes the loss rise, from "));
  EXPECT_THAT(ruined.LastErrorLine(), StartsWith("error: the loss rose from "));
  EXPECT_THAT(ruined.LastErrorLine(), HasSubstr("the adapter saved in ruined is of little use"));
  EXPECT_EQ(Log("ruined").size(), 24u);
  EXPECT_EQ(Run({"generate", "model", "Once", "--adapter", "ruined", "--max_new_tokens=2"}).code,
            0);
}

TEST_F(TrainingJobTest, WarningsComeLastBeforeTheFirstStep) {
  const Outcome outcome =
      Run(TrainWords({"--max_steps=2", "--max_length=8", "--over_long=truncate"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::size_t plan = outcome.err.find("memory plan");
  const std::size_t lost = outcome.err.find(
      "warning: 8 of 8 records (100 %) are dropped or cut: 8 are "
      "cut to 8 tokens (raise max_length");
  const std::size_t warmup = outcome.err.find("warning: warm-up takes ");
  const std::size_t step = outcome.err.find("step=1/2");
  EXPECT_LT(plan, lost) << outcome.err;
  EXPECT_LT(lost, warmup);
  EXPECT_LT(warmup, step);
  ASSERT_NE(step, std::string::npos);
  EXPECT_THAT(Run({"validate", "base.yaml", "--max_steps=2", "--output_dir=new"}).err,
              HasSubstr("warm-up takes "));
}

TEST_F(TrainingJobTest, AnInterruptedRunIsSavedAndGoesOn) {
  const Words more = {"--max_steps=40", "--logging_steps=1"};
  const Words words = TrainWords(more);
  ASSERT_EQ(Run(words).code, 0);
  const std::string whole = ReadAll(scratch_ / "out/adapter_model.safetensors");
  fs::remove_all(scratch_ / "out");

  Words with_json = words;
  // A place that a record may not choose is a part of the command to resume.
  for (const char* word : {"--json", "--report_to=tensorboard", "--logging_dir=logs"}) {
    with_json.push_back(word);
  }
  const Outcome outcome = RunQlora(scratch_, with_json, "", [&](pid_t child) {
    const fs::path log = scratch_ / "out/train_log.jsonl";
    EXPECT_TRUE(HoldWhen(child, [&] { return fs::exists(log) && fs::file_size(log) > 0; }));
    kill(child, SIGINT);
    kill(child, SIGCONT);
  });
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("checkpoint saved in out/checkpoint-"));
  EXPECT_EQ(outcome.LastErrorLine(), "to resume: qlora resume out --logging_dir logs");
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result.at("ok"), false);
  EXPECT_EQ(result.at("exit_code"), 130);
  EXPECT_EQ(result.at("interrupted"), true);
  EXPECT_THAT(result.at("checkpoint").get<std::string>(), StartsWith("out/checkpoint-"));

  const Outcome rest = Run({"resume", "out", "--logging_dir", "logs"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(whole == ReadAll(scratch_ / "out/adapter_model.safetensors"));
  EXPECT_EQ(Log("out").size(), 40u);
}

TEST_F(TrainingJobTest, AReaderThatGoesAwayDoesNotEndTheRun) {
  std::string command = QloraBinary();
  for (const std::string& word : TrainWords({"--max_steps=20"})) command += " " + word;
  const std::string shell = "cd " + scratch_.string() + " && " + command + " 2>&1 | head -n 1";
  ASSERT_EQ(std::system((shell + " > /dev/null").c_str()), 0);
  EXPECT_EQ(Log("out").size(), 20u);
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));
}

}  // namespace
}  // namespace qlora
