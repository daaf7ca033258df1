// Unsuitable data, settings and output directories: exit code 2, nothing written.
#include <gmock/gmock.h>

#include "bound_by_permissions.h"
#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class BadRunTest : public TinyModelTest {};

TEST_F(BadRunTest, EmptyDataset) {
  Write("data.jsonl", "");
  EXPECT_THAT(Refused(TrainWords()), HasSubstr("data.jsonl"));
  EXPECT_THAT(Refused({"eval", "model", "data.jsonl"}), HasSubstr("data.jsonl"));
}

TEST_F(BadRunTest, DatasetThatIsNotThere) {
  fs::remove(scratch_ / "data.jsonl");
  EXPECT_THAT(Refused(TrainWords()), HasSubstr("data.jsonl"));
  EXPECT_THAT(Refused({"eval", "model", "data.jsonl"}), HasSubstr("data.jsonl"));
}

TEST_F(BadRunTest, MalformedJsonLine) {
  Write("data.jsonl", "{\"text\": \"good\"}\n{\"text\": \"bad\n");
  EXPECT_THAT(Refused(TrainWords()), HasSubstr("data.jsonl:2"));
  EXPECT_THAT(Refused({"eval", "model", "data.jsonl"}), HasSubstr("data.jsonl:2"));
}

TEST_F(BadRunTest, RecordOfAnotherKind) {
  Write("data.jsonl", "{\"text\": \"good\"}\n{\"texte\": \"bad\"}\n");
  EXPECT_THAT(Refused(TrainWords()), HasSubstr("data.jsonl:2"));
}

TEST_F(BadRunTest, TokenBeyondTheVocabulary) {
  Write("data.jsonl", "{\"input_ids\": [1, 5, 6]}\n{\"input_ids\": [1, 5, 288]}\n");
  EXPECT_THAT(Refused(TrainWords()), AllOf(HasSubstr("data.jsonl:2"), HasSubstr("288")));
}

TEST_F(BadRunTest, NothingToTrainOn) {
  Write("data.jsonl", "{\"input_ids\": [1, 5, 6], \"labels\": [-100, -100, -100]}\n");
  EXPECT_THAT(Refused(TrainWords()), HasSubstr("data.jsonl"));
}

TEST_F(BadRunTest, BadEvaluationData) {
  Write("eval.jsonl", "{\"text\": \"good\"}\nnonsense\n");
  EXPECT_THAT(Refused(TrainWords({"--eval_dataset", "eval.jsonl"})), HasSubstr("eval.jsonl:2"));
}

TEST_F(BadRunTest, UnknownKeyOnTheCommandLineAndInYaml) {
  EXPECT_THAT(Refused(TrainWords({"--lora_rnk", "8"})), HasSubstr("did you mean 'lora_rank'?"));
  Write("run.yaml", "lora_r: 4\nlearning_rat: 1\n");
  EXPECT_THAT(Refused({"train", "run.yaml", "--model", "model", "--dataset", "data.jsonl"}),
              AllOf(HasSubstr("run.yaml:2"), HasSubstr("'learning_rate'?")));
}

TEST_F(BadRunTest, ValuesOutOfRange) {
  const std::pair<Words, const char*> cases[] = {
      {{"--lora_alpha", "-1"}, "lora_alpha"},
      {{"--learning_rate", "-1"}, "learning_rate"},
      {{"--warmup_ratio", "2"}, "warmup_ratio"},
      {{"--gradient_accumulation_steps", "0"}, "gradient_accumulation_steps"},
      {{"--adam_beta1", "1"}, "adam_beta1"},
      {{"--max_memory", "plenty"}, "max_memory: 'plenty' is not an amount of memory"},
      {{"--num_train_epochs", "1e12", "--max_steps", "-1"}, "num_train_epochs"},
      {{"--target_modules", "no_such_proj"}, "no_such_proj"},
      {{"--bnb_4bit_blocksize", "0"}, "bnb_4bit_blocksize"},
      {{"--compute_dtype", "int4"}, "compute_dtype"},
      {{"--dataset_format", "poems"}, "dataset_format: expected auto, raw,"},
      {{"--resume_from_checkpoint", "absent"}, "resume_from_checkpoint absent"},
      {{"--seed", "-1"}, "seed"},
      {{"--val_set_size", "-0.1"}, "val_set_size"},
      {{"--save_total_limit", "-1"}, "save_total_limit"},
      {{"--max_steps", "0"}, "max_steps"},
      {{"--max_steps", "-5"}, "max_steps"}};
  for (const auto& [words, expected] : cases) {
    const Outcome outcome = Run(TrainWords(words));
    EXPECT_EQ(outcome.code, 2) << words[0] << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(expected));
    EXPECT_FALSE(fs::exists(scratch_ / "out")) << words[0];
  }
}

TEST_F(BadRunTest, MaxStepsIsUnsetByMinusOne) {
  EXPECT_THAT(Refused(TrainWords({"--max_steps=0"})),
              HasSubstr("max_steps must be 1 or more, or -1 for num_train_epochs, found 0"));
  const Outcome epochs =
      Run({"validate", "base.yaml", "--max_steps=-1", "--gradient_accumulation_steps=1",
           "--per_device_train_batch_size=1", "--num_train_epochs=2"});
  EXPECT_EQ(epochs.code, 0) << epochs.err;
  EXPECT_THAT(epochs.out, HasSubstr("steps: 16 "));
}

// As Axolotl writes it, where `adapter` is the method.
TEST_F(BadRunTest, AMethodInThePlaceOfAnAdapter) {
  Write("run.yaml", ReadAll(scratch_ / "base.yaml") + "adapter: qlora\n");
  EXPECT_THAT(
      Refused({"train", "run.yaml"}),
      HasSubstr("qlora: there is no such adapter folder; for a new adapter leave this option "
                "out, and for a base in 4 bits set load_in_4bit"));
}

TEST_F(BadRunTest, AValueThatIsProbablyASlip) {
  const Outcome fast = Run({"validate", "base.yaml", "--learning_rate=2"});
  EXPECT_EQ(fast.code, 0) << fast.err;
  EXPECT_THAT(fast.err, HasSubstr("learning_rate 2 is far above the usual 1e-5 to 1e-3"));
  EXPECT_THAT(Refused({"validate", "base.yaml", "--dashboard=99999"}), HasSubstr("99999"));
}

TEST_F(BadRunTest, MoreMemoryThanAllowedIsExitCode3) {
  const auto before = Everything();
  const Outcome outcome = Run(TrainWords({"--max_memory", "1MB"}));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_TRUE(before == Everything());
}

TEST_F(BadRunTest, OutputDirectoryThatCannotBeWritten) {
  Write("file", "");
  for (const char* dir : {"file/out", "file", "/proc/qlora-out"}) {
    EXPECT_THAT(Refused(TrainWords({"--output_dir", dir})), HasSubstr(dir));
  }
  EXPECT_THAT(Refused({"quantize", "model", "/proc/out"}), HasSubstr("/proc/"));
  EXPECT_THAT(Refused({"export", "model", "/proc/out.gguf"}), HasSubstr("/proc/out.gguf"));
  EXPECT_THAT(Refused({"export", "model", "absent/out.gguf"}), HasSubstr("absent"));
}

TEST_F(BadRunTest, OutputDirectoryWithoutPermission) {
  const BoundByPermissions bound;
  if (!bound.holds()) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(scratch_ / "locked");
  fs::permissions(scratch_ / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(Refused(TrainWords({"--output_dir", "locked/out"})), HasSubstr("locked"));
  EXPECT_THAT(Refused({"quantize", "model", "locked/out"}), HasSubstr("locked"));
}

TEST_F(BadRunTest, OutputThatHoldsAnotherRun) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EXPECT_THAT(Refused(TrainWords()), AllOf(HasSubstr("out"), HasSubstr("overwrite")));
  const Outcome again = Run(TrainWords({"--overwrite_output_dir"}));
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(BadRunTest, OverwritingReplacesCheckpointsOnly) {
  fs::create_directory(scratch_ / "papers");
  Write("papers/thesis.txt", "mine");
  EXPECT_THAT(Refused({"quantize", "model", "papers", "--overwrite"}), HasSubstr("papers"));
  EXPECT_THAT(Refused({"quantize", "model", ".", "--overwrite"}), HasSubstr("model"));
  EXPECT_THAT(Refused({"export", "model", "model", "--format", "hf", "--overwrite"}),
              HasSubstr("model"));
  ASSERT_EQ(Run({"quantize", "model", "nf4/"}).code, 0);
  EXPECT_THAT(Refused({"export", "nf4", "m.gguf", "--merge_base", "original"}),
              HasSubstr("original"));
}

TEST_F(BadRunTest, ExportsAreNotNamedAsAnotherFormat) {
  for (const char* name : {"m.safetensors", "m.bin", "m.PT"}) {
    EXPECT_THAT(Refused({"export", "model", name}),
                AllOf(HasSubstr(name), HasSubstr("ends in .gguf"), HasSubstr("--format hf")));
    EXPECT_THAT(Refused({"export", "model", name, "--format", "hf"}),
                HasSubstr("choose a name without ."));
  }
  EXPECT_THAT(Refused({"export", "model", "m.gguf", "--format", "hf"}),
              HasSubstr("choose a name without .gguf"));
}

TEST_F(BadRunTest, OutputThatHoldsAnotherCheckpoint) {
  ASSERT_EQ(Run({"quantize", "model", "nf4"}).code, 0);
  EXPECT_THAT(Refused({"quantize", "model", "nf4"}), HasSubstr("nf4"));
  EXPECT_THAT(Refused({"quantize", "model", "model"}), HasSubstr("model"));
  EXPECT_EQ(Run({"quantize", "model", "nf4", "--overwrite"}).code, 0);
  ASSERT_EQ(Run({"export", "model", "m.gguf"}).code, 0);
  EXPECT_THAT(Refused({"export", "model", "m.gguf"}), HasSubstr("m.gguf"));
  EXPECT_EQ(Run({"export", "model", "m.gguf", "--overwrite"}).code, 0);
}

}  // namespace
}  // namespace qlora
