// From the queue to the end: whatever clients, signals and servers do meanwhile.
#include "serve/jobs/fine_tuning_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

using JobRunnerTest = FineTuningTest;

TEST_F(JobRunnerTest, OneRunsAndOthersWait) {
  StopBefore(2);
  const std::string first = Create();
  const std::string second = Create();
  WaitForStep(first, 1);
  EXPECT_EQ(jobs_->Get(second)["status"], "queued");
  gate_ = 1000;
  WaitFor(second, "succeeded");
  EXPECT_EQ(jobs_->Get(first)["status"], "succeeded");
  EXPECT_EQ(most_running_, 1);
}

TEST_F(JobRunnerTest, CancelEndsWhatRunsAndWhatWaits) {
  StopBefore(2);
  const std::string first = Create();
  const std::string second = Create();
  WaitForStep(first, 1);
  EXPECT_EQ(jobs_->Cancel(second)["status"], "cancelled");
  jobs_->Cancel(first);
  const OrderedJson job = WaitFor(first, "cancelled");
  EXPECT_TRUE(job["fine_tuned_model"].is_null());
  EXPECT_TRUE(job["error"].is_null());
  EXPECT_FALSE(job["finished_at"].is_null());
  EXPECT_EQ(StatusOf([&] { jobs_->Cancel(first); }), 400);
  EXPECT_EQ(StatusOf([&] { jobs_->Pause(first); }), 400);
  EXPECT_EQ(StatusOf([&] { jobs_->Resume(first); }), 400);
}

TEST_F(JobRunnerTest, APausedJobGoesOnWhereItWas) {
  StopBefore(4);
  const std::string id = Create();
  WaitForStep(id, 3);
  jobs_->Pause(id);
  WaitFor(id, "paused");
  EXPECT_EQ(MetricSteps(id).size(), 3);
  gate_ = 1000;
  jobs_->Resume(id);
  WaitFor(id, "succeeded");
  EXPECT_EQ(MetricSteps(id), (std::vector<std::int64_t>{1, 2, 3, 4}));
  ASSERT_EQ(tasks_.size(), 2);
  EXPECT_EQ(tasks_[1].arguments[0], "resume");
  EXPECT_EQ(tasks_[1].arguments[1], id);
  EXPECT_EQ(tasks_[1].arguments[2], "--model_name_or_path");
}

// What it has left is in nobody's way, and its record names files that a run may not choose.
TEST_F(JobRunnerTest, AJobWithoutACheckpointBeginsAnew) {
  StopBefore(1);
  const std::string id = Create();
  while (running_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  jobs_->Pause(id);
  WaitFor(id, "paused");
  gate_ = 1000;
  jobs_->Resume(id);
  WaitFor(id, "succeeded");
  ASSERT_EQ(tasks_.size(), 2);
  EXPECT_EQ(tasks_[1].arguments[0], "train");
  EXPECT_EQ(ConfigOf(1)["resume_from_checkpoint"], "auto");
}

// As systems that end a server do to all its processes.
TEST_F(JobRunnerTest, ATrainingThatSomebodyStopsIsPaused) {
  training_.exit_code = 130;
  const std::string id = Create();
  EXPECT_TRUE(WaitFor(id, "paused")["error"].is_null());
  training_.exit_code = 0;
  jobs_->Resume(id);
  WaitFor(id, "succeeded");
}

TEST_F(JobRunnerTest, TheNextServerGoesOnWithTheJobs) {
  const std::string done = Create();
  const auto model = WaitFor(done, "succeeded")["fine_tuned_model"].get<std::string>();
  StopBefore(3);
  const std::string first = Create();
  const std::string second = Create();
  WaitForStep(first, 2);
  Start();
  EXPECT_TRUE(models_->Has(model));
  EXPECT_EQ(jobs_->Get(done)["status"], "succeeded");
  gate_ = 1000;
  WaitFor(second, "succeeded");
  WaitFor(first, "succeeded");
  EXPECT_EQ(MetricSteps(first), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST_F(JobRunnerTest, AFolderMayBeMovedAndSpelledInAnotherWay) {
  runs_ = folder_ / "a";
  Start();
  const std::string first = Create();
  const auto model = WaitFor(first, "succeeded")["fine_tuned_model"].get<std::string>();
  StopBefore(3);
  const std::string second = Create({{"model", model}});
  WaitForStep(second, 2);
  const std::string third = Create({{"model", ModelOf(first, 2)}});
  jobs_.reset();
  for (const std::string& id : {second, third}) {
    EXPECT_EQ(ReadTextFile(RecordOf(id)).find(folder_.path().string()), std::string::npos);
  }
  std::filesystem::rename(folder_ / "a", folder_ / "b");
  std::filesystem::create_symlink("b", folder_ / "c");
  runs_ = folder_ / "b/../c";
  gate_ = 1000;
  tasks_.clear();
  Start();
  EXPECT_TRUE(models_->Has(model));
  WaitFor(third, "succeeded");
  WaitFor(second, "succeeded");
  ASSERT_EQ(tasks_.size(), 2);
  EXPECT_EQ(tasks_[0].arguments[1], second);
  EXPECT_EQ(ConfigOf(1)["adapter"], first + "/checkpoint-2");
  EXPECT_EQ(ConfigOf(1)["dataset"][0].get<std::string>().rfind("files/file-", 0), 0);
}

TEST_F(JobRunnerTest, JobsOfAnotherBaseWaitForAServerWithIt) {
  const std::string done = Create();
  WaitFor(done, "succeeded");
  StopBefore(1);
  const std::string waits = Create();
  weights_ = "b";
  Start();
  gate_ = 1000;
  const std::string other = Create();
  WaitFor(other, "succeeded");
  EXPECT_EQ(jobs_->Get(waits)["status"], "queued");
  EXPECT_FALSE(models_->Has(ModelOf(done)));
  EXPECT_TRUE(models_->Has(ModelOf(other)));
  EXPECT_THAT(log_, HasSubstr(waits + ": was made for base, whose weights are not those"));
  weights_ = "a";
  Start();
  WaitFor(waits, "succeeded");
  EXPECT_TRUE(models_->Has(ModelOf(done)));
  EXPECT_FALSE(models_->Has(ModelOf(other)));
}

// A disk that takes no more.
TEST_F(JobRunnerTest, ATrainingThatIsDoneIsAModelWhateverItsRecordLacks) {
  StopBefore(4);
  const std::string id = Create();
  WaitForStep(id, 3);
  std::filesystem::remove_all(folder_.path() / "files");
  gate_ = 1000;
  const OrderedJson job = WaitFor(id, "succeeded");
  EXPECT_TRUE(job["result_files"].empty());
  EXPECT_EQ(job["trained_tokens"], 40);
  EXPECT_TRUE(models_->Has(ModelOf(id)));
  EXPECT_THAT(jobs_->Events(id, {}).dump(), HasSubstr("is not whole"));
}

TEST_F(JobRunnerTest, WhatAFullDiskRefusesHasNotHappened) {
  StopBefore(3);
  const std::string first = Create();
  const std::string paused = Create();
  const std::string queued = Create();
  WaitForStep(first, 1);
  jobs_->Pause(paused);
  std::filesystem::rename(runs_ / "jobs", runs_ / "other");
  EXPECT_ANY_THROW(jobs_->Resume(paused));
  EXPECT_ANY_THROW(jobs_->Cancel(paused));
  EXPECT_EQ(jobs_->Get(paused)["status"], "paused");
  EXPECT_ANY_THROW(jobs_->Cancel(queued));
  EXPECT_ANY_THROW(jobs_->Pause(queued));
  EXPECT_EQ(jobs_->Get(queued)["status"], "queued");
  // But a training ends.
  EXPECT_EQ(jobs_->Pause(first)["status"], "pausing");
  WaitFor(first, "paused");
  std::filesystem::rename(runs_ / "other", runs_ / "jobs");
  gate_ = 1000;
  jobs_->Resume(paused);
  WaitFor(paused, "succeeded");
  jobs_->Resume(first);
  WaitFor(first, "succeeded");
}

// While the server still answers what it has begun.
TEST_F(JobRunnerTest, ARunningJobEndsBeforeItsServer) {
  StopBefore(3);
  const std::string first = Create();
  const std::string second = Create();
  WaitForStep(first, 2);
  jobs_->BeginStop();
  while (running_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(jobs_->Get(second)["status"], "queued");
  EXPECT_TRUE(std::filesystem::exists(CheckpointDir(folder_.path() / first, 2)));
  gate_ = 1000;
  Start();
  WaitFor(second, "succeeded");
  WaitFor(first, "succeeded");
}

TEST_F(JobRunnerTest, ARunThatEndedBeforeItsServerKnewIsTaken) {
  const std::string id = Create();
  WaitFor(id, "succeeded");
  jobs_.reset();
  // As the file was while the run went on.
  const auto record = RecordOf(id);
  Json job = ReadJsonFile(record);
  job["status"] = "running";
  job.erase("finished_at");
  WriteTextFile(record, FormatJson(job));
  Start();
  WaitFor(id, "succeeded");
  EXPECT_EQ(tasks_.size(), 1);
}

}  // namespace
}  // namespace qlora
