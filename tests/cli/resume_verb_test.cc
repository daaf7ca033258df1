// `qlora resume OUTPUT_DIR`: after a kill, for more steps, from another folder, and its refusals.
#include <gmock/gmock.h>

#include <csignal>

#include "base/file.h"
#include "cli/tiny_model.h"
#include "io/folder_lock.h"
#include "io/json.h"
#include "test_build.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ResumeVerbTest : public TinyModelTest {
 protected:
  std::string Adapter(const std::string& run) const {
    return ReadAll(scratch_ / run / "adapter_model.safetensors");
  }
  std::int64_t Steps(const std::string& run) const {
    const std::string log = ReadAll(scratch_ / run / "train_log.jsonl");
    return std::count(log.begin(), log.end(), '\n');
  }
  // Trains 40 steps into `out` and kills the program once it has a checkpoint.
  void TrainAndKill() const {
    RunQlora(scratch_, TrainWords({"--max_steps=40", "--save_steps=5"}), "", [&](pid_t child) {
      EXPECT_TRUE(HoldWhen(child, [&] { return fs::exists(scratch_ / "out/checkpoint-5"); }));
      kill(child, SIGKILL);
    });
  }
};

TEST_F(ResumeVerbTest, AfterAKillFromAnotherFolder) {
  ASSERT_EQ(Run(TrainWords({"--max_steps=40", "--output_dir=whole"})).code, 0);
  TrainAndKill();
  fs::create_directory(scratch_ / "elsewhere");
  const Outcome rest = RunQlora(scratch_ / "elsewhere", {"resume", "../out/"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr("of 40 steps are done"));
  EXPECT_TRUE(Adapter("whole") == Adapter("out"));
  EXPECT_EQ(Steps("out"), 40);
  // The places that were recorded then lead from any folder.
  EXPECT_EQ(RunQlora("/", {"resume", (scratch_ / "out").string(), "--max_steps=41"}).code, 0);
}

TEST_F(ResumeVerbTest, AFinishedRunIsTrainedFurther) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EXPECT_THAT(Refused({"resume", "out"}),
              HasSubstr("out: the run is finished, all of its 2 steps are done; to train it "
                        "further, give --num_train_epochs N or --max_steps N (max_steps was 2)"));
  EXPECT_THAT(Refused({"resume", "out", "--max_steps=1"}), HasSubstr("ask for 2 or more"));
  const Outcome steps = Run({"resume", "out", "--max_steps", "4"});
  EXPECT_EQ(steps.code, 0) << steps.err;
  EXPECT_THAT(steps.err, HasSubstr("steps: 2 before, 4 now; from step 3 on, the learning rate "
                                   "follows the cosine schedule of 4 steps (warm-up 1)\n"));
  EXPECT_EQ(Steps("out"), 4);
  // Eight samples are one step; the epochs replace the recorded max_steps.
  const Outcome epochs = Run({"resume", "out", "--epochs=5"});
  EXPECT_EQ(epochs.code, 0) << epochs.err;
  EXPECT_EQ(Steps("out"), 5);
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("(num_train_epochs was 5)"));
}

TEST_F(ResumeVerbTest, FoldersWithoutARunAreRefused) {
  EXPECT_THAT(Refused({"resume", "absent"}), HasSubstr("absent: there is no such folder"));
  EXPECT_THAT(Refused({"resume", "model"}), HasSubstr("model: the folder holds no run"));
  EXPECT_THAT(Refused({"resume"}), HasSubstr("output_dir is missing"));
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EXPECT_THAT(Refused({"resume", "out/checkpoint-2/"}),
              HasSubstr("qlora resume out --resume_from_checkpoint out/checkpoint-2/"));
  fs::remove_all(scratch_ / "out/checkpoint-2");
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("finished adapter and no checkpoint"));
  {
    FolderLock other_run;
    fs::remove(scratch_ / "out/adapter_model.safetensors");
    ASSERT_TRUE(other_run.Take(scratch_ / "out"));
    EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("out is in use by another run"));
  }
  {
    FolderLock other_run;
    ASSERT_TRUE(other_run.Take(scratch_ / "out"));
    EXPECT_THAT(Run(TrainWords({"--dry_run", "--overwrite_output_dir"})).err,
                HasSubstr("out is in use by another run"));
  }
  Write("out/train_config.json", "{\"max_steps\": \"2\",");
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("out/train_config.json: not valid JSON"));
}

// The folder was moved as well, and the command is given from another one.
TEST_F(ResumeVerbTest, ARunThatEndedBeforeItsFirstCheckpointStartsAgain) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  const std::string adapter = Adapter("out");
  fs::remove_all(scratch_ / "out/checkpoint-2");
  fs::remove(scratch_ / "out/adapter_model.safetensors");
  fs::rename(scratch_ / "out", scratch_ / "moved");
  fs::create_directory(scratch_ / "elsewhere");
  const Outcome outcome = RunQlora(scratch_ / "elsewhere", {"resume", "../moved"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("holds no checkpoint to resume from, so the run starts at "
                                     "its first step"));
  EXPECT_TRUE(Adapter("moved") == adapter);
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

TEST_F(ResumeVerbTest, ADamagedCheckpointIsNamed) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  fs::resize_file(scratch_ / "out/checkpoint-2/optimizer.safetensors", 100);
  const std::string adapter = Adapter("out");
  EXPECT_THAT(Refused({"resume", "out", "--max_steps=4"}),
              AllOf(HasSubstr("out: no checkpoint can be read; out/checkpoint-2 is damaged"),
                    HasSubstr("choose another output_dir")));
  EXPECT_TRUE(Adapter("out") == adapter);
}

TEST_F(ResumeVerbTest, WhatAStepDependsOnCannotChange) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  for (const char* option : {"--learning_rate=1", "--lr", "--lora-r", "--overwrite_output_dir"}) {
    EXPECT_THAT(Refused({"resume", "out", option, "3"}),
                HasSubstr("cannot change when a run resumes"));
  }
  EXPECT_THAT(Refused({"resume", "out", "--max_step", "3"}), HasSubstr("'max_steps'?"));
}

TEST_F(ResumeVerbTest, MovedFilesAreNamedAndFound) {
  ASSERT_EQ(Run(TrainWords({"--eval_dataset=data.jsonl"})).code, 0);
  fs::rename(scratch_ / "data.jsonl", scratch_ / "moved.jsonl");
  const Words more = {"resume", "out", "--max_steps=4"};
  EXPECT_THAT(Refused(more),
              AllOf(HasSubstr("data.jsonl"), HasSubstr("where it is now: --dataset")));
  Words found = more;
  found.push_back("--dataset=moved.jsonl");
  EXPECT_THAT(Refused(found), HasSubstr("where it is now: --eval_dataset"));
  found.push_back("--eval_dataset=moved.jsonl");
  fs::rename(model(), scratch_ / "model-2");
  EXPECT_THAT(Refused(found), HasSubstr("where it is now: --model_name_or_path"));
  found.push_back("--model=model-2");
  const Outcome outcome = Run(found);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Steps("out"), 4);
}

TEST_F(ResumeVerbTest, RecordsInMemoryAreAskedFor) {
  ASSERT_EQ(Run(TrainWords({})).code, 0);
  const fs::path file = scratch_ / "out/train_config.json";
  Json record = ReadJsonFile(file);
  record["dataset"] = "records";
  fs::remove(file);
  WriteTextFile(file, FormatJson(record));
  Words more = {"resume", "out", "--max_steps=4"};
  EXPECT_THAT(Refused(more),
              AllOf(HasSubstr("as records in memory"), HasSubstr("resume_from_checkpoint=\"auto\""),
                    HasSubstr("--dataset FILE")));
  more.push_back("--dataset=data.jsonl");
  EXPECT_EQ(Run(more).code, 0);
}

// With the model and the data in it, from any folder.
TEST_F(ResumeVerbTest, ARenamedProjectIsFound) {
  fs::create_directories(scratch_ / "project/runs");
  for (const char* name : {"model", "data.jsonl", "base.yaml"}) {
    fs::rename(scratch_ / name, scratch_ / "project" / name);
  }
  const Outcome trained = RunQlora(scratch_ / "project", TrainWords({"--output_dir=./runs/out/"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  fs::rename(scratch_ / "project", scratch_ / "renamed");
  const Outcome outside = Run({"resume", "renamed/runs/out", "--max_steps=3"});
  EXPECT_EQ(outside.code, 0) << outside.err;
  const Outcome inside = RunQlora(scratch_ / "renamed/runs", {"resume", "out", "--max_steps=4"});
  EXPECT_EQ(inside.code, 0) << inside.err;
  EXPECT_EQ(Steps("renamed/runs/out"), 4);
}

TEST_F(ResumeVerbTest, AnotherModelIsSaidToBeAnother) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  fs::copy(SourceDir() / "examples/base-1m", scratch_ / "other");
  EXPECT_THAT(Refused({"resume", "out", "--max_steps=3", "--model=other"}),
              HasSubstr("the weights of model_name_or_path, the "
                        "samples of dataset."));
}

// The folder of a run may be a stranger's, whose record names files of the user.
TEST_F(ResumeVerbTest, ARecordDoesNotChooseWhereToWrite) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  fs::remove_all(scratch_ / "out/checkpoint-2");
  fs::remove(scratch_ / "out/adapter_model.safetensors");
  const std::string good = ReadAll(scratch_ / "out/train_config.json");
  const auto record = [&](const char* key, const std::string& value) {
    Write("out/train_config.json", good);
    EditJson(scratch_ / "out/train_config.json", [&](nlohmann::json& json) {
      json["report_to"] = "tensorboard";
      json[key] = value;
    });
  };
  for (const char* key : {"logging_dir", "dataset_prepared_path"}) {
    record(key, (scratch_ / "elsewhere").string());
    EXPECT_THAT(Refused({"resume", "out"}),
                AllOf(HasSubstr("outside of the folder of the run"),
                      HasSubstr("add to the command: --" + std::string(key) + " " +
                                (scratch_ / "elsewhere").string())));
  }
  fs::create_directory(scratch_ / "elsewhere");
  fs::create_directory_symlink(scratch_ / "elsewhere", scratch_ / "out/runs");
  record("logging_dir", "");
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("outside of the folder of the run"));
  fs::remove(scratch_ / "out/runs");
  record("save_quantized", "elsewhere");
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("save_quantized"));
  record("logging_dir", "out/logs");
  const Outcome inside = Run({"resume", "out"});
  EXPECT_EQ(inside.code, 0) << inside.err;
  EXPECT_TRUE(fs::exists(scratch_ / "out/logs"));
  record("logging_dir", "elsewhere");
  const Outcome given = Run({"resume", "out", "--max_steps=3", "--logging_dir=elsewhere"});
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_FALSE(fs::is_empty(scratch_ / "elsewhere"));
}

// Releases with a CUDA backend recorded options and values that only a card had.
TEST_F(ResumeVerbTest, ContinuesRunsThatRecordedOptionsOfACard) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EditJson(scratch_ / "out/train_config.json",
           [](nlohmann::json& json) { json["deterministic"] = "true"; });
  EXPECT_EQ(Run({"resume", "out", "--max_steps=3"}).code, 0);
  EditJson(scratch_ / "out/train_config.json", [](nlohmann::json& json) {
    json["device"] = "cuda";
    json["recompute"] = "offload";
    json["ddp_backend"] = "nccl";
  });
  EXPECT_THAT(Refused({"resume", "out", "--max_steps=4", "--ddp_backend=auto"}),
              HasSubstr("qlora computes on the CPU"));
  EXPECT_EQ(Run({"resume", "out", "--max_steps=4", "--device=auto", "--recompute=auto",
                 "--ddp_backend=auto"})
                .code,
            0);
}

TEST_F(ResumeVerbTest, ATemplateIsTakenFromTheFolderOfTheRun) {
  Write("turns.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
        "\"content\": \"Hello\"}]}\n");
  Write("own.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}");
  const std::string own = ReadAll(scratch_ / "own.jinja");
  const Outcome trained = Run(TrainWords({"--dataset=turns.jsonl", "--chat_template=own.jinja"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  // What the user's file holds now does not reach the folder.
  Write("own.jinja", "a key");
  const Outcome resumed = Run({"resume", "out", "--max_steps=3"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(ReadAll(scratch_ / "out/chat_template.jinja"), own);
  // Also with the copies of checkpoints alone, the first of which is removed.
  fs::remove(scratch_ / "out/chat_template.jinja");
  fs::remove_all(scratch_ / "out/checkpoint-2");
  const Outcome again = Run({"resume", "out", "--max_steps=4"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(ReadAll(scratch_ / "out/chat_template.jinja"), own);

  for (const int step : {3, 4}) {
    fs::remove_all(scratch_ / "out" / ("checkpoint-" + std::to_string(step)));
  }
  fs::remove(scratch_ / "out/chat_template.jinja");
  fs::remove(scratch_ / "out/adapter_model.safetensors");
  EditJson(scratch_ / "out/train_config.json",
           [](nlohmann::json& json) { json["chat_template"] = "own.jinja"; });
  EXPECT_THAT(Refused({"resume", "out"}), HasSubstr("--chat_template own.jinja"));
}

TEST_F(ResumeVerbTest, CommasInRecordedListsStay) {
  Write("sampled.yaml", ReadAll(scratch_ / "base.yaml") + "sample_prompts: [\"Once, there\", B]\n");
  ASSERT_EQ(Run({"train", "sampled.yaml"}).code, 0);
  const Outcome outcome = Run({"resume", "out", "--max_steps=3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string samples = ReadAll(scratch_ / "out/samples.jsonl");
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '\n'), 6) << samples;
  EXPECT_THAT(samples, HasSubstr("\"prompt\":\"Once, there\",\"step\":3"));
  EXPECT_EQ(Run({"report", "out", "--out", "page.html"}).code, 0);
  EXPECT_EQ(ReadAll(scratch_ / "page.html").find(scratch_.string() + "\""), std::string::npos);
}

}  // namespace
}  // namespace qlora
