#include "serve/jobs/training_failure.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/file.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::Not;

JobError Failure(int exit_code, const std::string& error) {
  Job job;
  job.id = "ftjob-x";
  const TrainingFiles files{
      .training = "files/file-t.jsonl", .validation = "files/file-v.jsonl", .run = "ftjob-x"};
  const std::string output =
      error.empty() ? "" : FormatJson(Json{{"ok", false}, {"error", error + "\nmore"}});
  return FailureOf({.exit_code = exit_code, .output = output}, job, files, "train.jsonl",
                   "valid.jsonl");
}

TEST(TrainingFailureTest, AFileIsBlamedByItsNameAlone) {
  const JobError bad = Failure(2, "files/file-t.jsonl:3: bad; mend it");
  EXPECT_EQ(bad.code, "invalid_training_file");
  EXPECT_EQ(bad.param, "training_file");
  EXPECT_EQ(bad.message, "train.jsonl:3: bad; mend it");
  const JobError valid = Failure(2, "files/file-v.jsonl: no record");
  EXPECT_EQ(valid.code, "invalid_validation_file");
  EXPECT_EQ(valid.param, "validation_file");
  EXPECT_EQ(valid.message, "valid.jsonl: no record");
  EXPECT_EQ(Failure(2, "the model has no such thing").code, "training_failed");
  EXPECT_EQ(Failure(1, "files/file-t.jsonl: cannot be read").code, "training_failed");
}

// What the program advises to who runs it is no advice to a client.
TEST(TrainingFailureTest, MemoryAndDiskAreTheServers) {
  const JobError memory =
      Failure(3,
              "the run needs 5 GiB but max_memory 4GB allows 4 GiB; the largest part is x (1 "
              "B). What would fit: lora_r 4");
  EXPECT_EQ(memory.code, "insufficient_memory");
  EXPECT_THAT(memory.message, HasSubstr("needs 5 GiB but max_memory 4GB allows 4 GiB; take "));
  EXPECT_THAT(memory.message, Not(HasSubstr("lora_r")));
  const JobError killed = Failure(137, "");
  EXPECT_EQ(killed.code, "insufficient_memory");
  EXPECT_THAT(killed.message, HasSubstr("SIGKILL"));
  const JobError plan = Failure(
      2,
      "output_dir: the run writes up to 5 GiB (checkpoints: 4 of 1 GiB) but /home/x/runs has "
      "3 GiB free; choose another output_dir, fewer checkpoints, or a save_total_limit");
  EXPECT_EQ(plan.code, "disk_error");
  EXPECT_TRUE(plan.param.empty());
  EXPECT_THAT(plan.message, HasSubstr("DELETE /v1/files/{id}"));
  for (const char* other : {"output_dir", "/home"}) {
    EXPECT_THAT(plan.message, Not(HasSubstr(other)));
  }
}

TEST(TrainingFailureTest, AWriteThatADiskRefusesIsTheServers) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  std::string error;
  try {
    internal::WriteAll(full, "ftjob-x/checkpoint-1/adapter_model.safetensors", -1,
                       std::as_bytes(std::span("bytes")));
  } catch (const Error& thrown) {
    error = thrown.what();
  }
  close(full);
  EXPECT_EQ(Failure(1, error).code, "disk_error") << error;
}

TEST(TrainingFailureTest, OthersNameTheLog) {
  for (const auto& [code, text] :
       {std::pair(1, "the loss is no number; lower learning_rate"), std::pair(127, "")}) {
    const JobError error = Failure(code, text);
    EXPECT_EQ(error.code, "training_failed");
    EXPECT_THAT(error.message, HasSubstr("jobs/ftjob-x.log"));
    EXPECT_THAT(error.message, Not(HasSubstr("learning_rate")));
    EXPECT_THAT(error.message, HasSubstr(code == 1 ? "is no number" : "exit code 127"));
  }
}

}  // namespace
}  // namespace qlora
