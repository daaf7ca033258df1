#include "serve/jobs/job_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/jobs/job.h"

namespace qlora {
namespace {

using testing::HasSubstr;

JobRequest Read(const std::string& more) {
  return ReadJobRequest(
      ParseOrderedJson(R"({"model": "base", "training_file": "file-x")" + more + "}", "body"));
}

TEST(JobRequestTest, AutoAndNothingAreTheDefaultsOfTraining) {
  for (const char* more :
       {"", R"(, "method": null, "hyperparameters": {}, "suffix": null, "seed": null)",
        R"(, "hyperparameters": {"epochs": null}, "method": {"type": "supervised", "dpo": null})",
        R"(, "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "auto",
            "batch_size": "auto", "learning_rate_multiplier": "auto"}}}, "integrations": [])"}) {
    const JobRequest request = Read(more);
    EXPECT_EQ(request.method, TrainingMethod::kSupervised);
    EXPECT_EQ(request.n_epochs, 3);
    EXPECT_EQ(request.batch_size, 8);
    EXPECT_EQ(request.learning_rate_multiplier, 1);
    EXPECT_GE(request.seed, 0);
  }
  EXPECT_NE(Read("").seed, Read("").seed);
}

TEST(JobRequestTest, ReadsBothPlacesOfHyperparameters) {
  const JobRequest old = Read(R"(, "hyperparameters": {"n_epochs": 1, "batch_size": 2})");
  EXPECT_EQ(old.n_epochs, 1);
  EXPECT_EQ(old.batch_size, 2);
  const JobRequest dpo = Read(
      R"(, "method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 5, "beta": 0.2,
         "learning_rate_multiplier": 0.5}}}, "hyperparameters": {"n_epochs": 9}, "seed": 7,
         "suffix": "words", "metadata": {"a": "b"}, "validation_file": "file-y")");
  EXPECT_EQ(dpo.method, TrainingMethod::kDpo);
  EXPECT_EQ(dpo.n_epochs, 5);
  EXPECT_EQ(dpo.beta, 0.2);
  EXPECT_EQ(dpo.learning_rate_multiplier, 0.5);
  EXPECT_EQ(dpo.seed, 7);
  EXPECT_EQ(dpo.suffix, "words");
  EXPECT_EQ(dpo.metadata.at("a"), "b");
  EXPECT_EQ(dpo.validation_file, "file-y");
  // What the method leaves out is read at the top.
  const JobRequest both = Read(
      R"(, "method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 5}}},
         "hyperparameters": {"n_epochs": 9, "batch_size": 2, "beta": 0.3,
         "learning_rate_multiplier": 0.5})");
  EXPECT_EQ(both.n_epochs, 5);
  EXPECT_EQ(both.batch_size, 2);
  EXPECT_EQ(both.beta, 0.3);
  EXPECT_EQ(both.learning_rate_multiplier, 0.5);
  EXPECT_EQ(Read(R"(, "method": {"type": "supervised", "supervised": {"hyperparameters": {}}},
                     "hyperparameters": {"n_epochs": 9})")
                .n_epochs,
            9);
}

TEST(JobRequestTest, RefusesWithTheNameOfTheField) {
  const std::pair<const char*, std::string> wrong[] = {
      {"n_epochs", R"(, "hyperparameters": {"n_epochs": 0})"},
      {"n_epochs", R"(, "hyperparameters": {"n_epochs": 1.5})"},
      {"n_epochs", R"(, "hyperparameters": {"n_epochs": "3"})"},
      {"batch_size", R"(, "hyperparameters": {"batch_size": "many"})"},
      {"batch_size", R"(, "hyperparameters": {"batch_size": true})"},
      {"learning_rate_multiplier", R"(, "hyperparameters": {"learning_rate_multiplier": -1})"},
      {"learning_rate_multiplier", R"(, "hyperparameters": {"learning_rate_multiplier": 0})"},
      {"beta", R"(, "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": -1}}})"},
      {"method", R"(, "method": {"type": "magic"})"},
      {"method", R"(, "method": "dpo")"},
      {"reinforcement", R"(, "method": {"type": "reinforcement", "reinforcement": {}})"},
      {"suffix", R"(, "suffix": ")" + std::string(65, 'x') + "\""},
      {"suffix", R"(, "suffix": 5)"},
      {"seed", R"(, "seed": "x")"},
      {"seed", R"(, "seed": -1)"},
      {"metadata", R"(, "metadata": {"a": 5})"},
      {"metadata", R"(, "metadata": {"a": ")" + std::string(513, 'x') + "\"}"},
      {"integrations", R"(, "integrations": [{"type": "wandb"}])"},
      {"validation_file", R"(, "validation_file": 5)"},
      {"hyperparameters.epochs", R"(, "hyperparameters": {"epochs": 10})"},
      {"hyperparameters.beta", R"(, "hyperparameters": {"beta": 0.1})"},
      {"method.supervised", R"(, "method": {"type": "dpo", "supervised": {}})"},
      {"method.dpo.beta", R"(, "method": {"type": "dpo", "dpo": {"beta": 1}})"},
      {"n_epochs", R"(, "n_epochs": 5)"},
      {"model", R"(, "model": "")"}};
  for (const auto& [name, more] : wrong) {
    try {
      Read(more);
      ADD_FAILURE() << "taken: " << more;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_THAT(error.message + " " + error.param, HasSubstr(name)) << more;
    }
  }
  EXPECT_THROW(ReadJobRequest({{"model", "base"}}), ApiError);
  EXPECT_THROW(ReadJobRequest({{"training_file", "file-x"}}), ApiError);
}

TEST(JobRequestTest, ASuffixCountsCharacters) {
  std::string suffix;
  for (int i = 0; i < 64; ++i) suffix += "é";
  EXPECT_EQ(Read(R"(, "suffix": ")" + suffix + "\"").suffix, suffix);
}

Job SomeJob() {
  Job job;
  job.id = "ftjob-ABCDEFGHIJKLMNOPQRSTUVWX";
  job.base = "org/base";
  job.adapter = "ftjob-x";
  job.chat_template = "ftjob-x/chat_template.jinja";
  job.request = Read(R"(, "suffix": "../../x", "metadata": {"a": "b"}, "seed": 5)");
  job.checkpoints = {{.step = 4, .created_at = 7, .train_loss = 0.5, .valid_loss = 0.25}, {}};
  job.error = JobError{.code = "c", .message = "m"};
  job.deleted_models = {"gone"};
  job.status = JobStatus::kPausing;
  job.trained_tokens = 12;
  return job;
}

TEST(JobTest, AModelsNameIsNoPath) {
  const Job job = SomeJob();
  EXPECT_EQ(job.model(), "ft:org-base:local:..-..-x:QRSTUVWX");
  EXPECT_EQ(job.CheckpointModel(job.checkpoints[0]), job.model() + ":ckpt-step-4");
}

TEST(JobTest, ARecordIsTheJob) {
  const Job job = SomeJob();
  const Json record = ToRecord(job);
  const Job again = ReadRecord(record, job.id, "job.json");
  EXPECT_EQ(ToRecord(again), record);
  EXPECT_EQ(ToJson(again), ToJson(job));
  EXPECT_EQ(again.status, JobStatus::kPausing);
  EXPECT_FALSE(again.checkpoints[1].train_loss);
}

TEST(JobTest, ADamagedRecordIsRefused) {
  const Job job = SomeJob();
  const Json record = ToRecord(job);
  for (const auto& [key, value] : record.items()) {
    if (key == "checkpoints" || key == "error" || key == "trained_tokens") continue;
    if (key == "base_fingerprint" || key == "chat_template") continue;  // of older records
    Json without = record;
    without.erase(key);
    EXPECT_THROW(ReadRecord(without, job.id, "job.json"), Error) << key;
    Json wrong = record;
    wrong[key] = true;
    EXPECT_THROW(ReadRecord(wrong, job.id, "job.json"), Error) << key;
  }
}

TEST(JobTest, AMethodThatIsNoneIsRefused) {
  const Job job = SomeJob();
  Json record = ToRecord(job);
  record["request"]["method"] = "magic";
  EXPECT_THROW(ReadRecord(record, job.id, "job.json"), Error);
}

// A count of 0 would be divided by.
TEST(JobTest, NumbersThatNoJobHasAreRefused) {
  const Job job = SomeJob();
  const Json record = ToRecord(job);
  const std::pair<const char*, int> wrong[] = {{"/request/n_epochs", 0},
                                               {"/request/batch_size", 0},
                                               {"/request/seed", -1},
                                               {"/number", -1},
                                               {"/checkpoints/0/step", -1}};
  for (const auto& [place, number] : wrong) {
    Json changed = record;
    changed[Json::json_pointer(place)] = number;
    EXPECT_THROW(ReadRecord(changed, job.id, "job.json"), Error) << place;
  }
}

}  // namespace
}  // namespace qlora
