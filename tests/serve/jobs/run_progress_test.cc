#include "serve/jobs/run_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/job_events.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::int64_t> StepsOf(LogFollower& log) {
  std::vector<std::int64_t> steps;
  log.Read([&](const Json& line) { steps.push_back(line["step"].get<std::int64_t>()); });
  return steps;
}

void Append(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

TEST(LogFollowerTest, ReadsEachWholeLineOnce) {
  const TemporaryFolder folder;
  const auto path = folder / "train_log.jsonl";
  LogFollower log(path);
  EXPECT_THAT(StepsOf(log), IsEmpty());
  Append(path, "{\"step\":1}\n{\"step\":");
  EXPECT_THAT(StepsOf(log), ElementsAre(1));
  Append(path, "2}\nno line\n[3]\n{\"step\":\"4\"}\n");
  EXPECT_THAT(StepsOf(log), ElementsAre(2));
  EXPECT_THAT(StepsOf(log), IsEmpty());
}

TEST(LogFollowerTest, ALogThatIsReplacedIsReadAnew) {
  const TemporaryFolder folder;
  const auto path = folder / "train_log.jsonl";
  LogFollower log(path);
  WriteTextFile(path, "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_THAT(StepsOf(log), ElementsAre(1, 2));
  WriteTextFile(path, "{\"step\":1}\n{\"step\":5}\n{\"step\":6}\n");
  EXPECT_THAT(StepsOf(log), ElementsAre(1, 5, 6));
}

TEST(RunProgressTest, FindsTheValueOfAStep) {
  const TemporaryFolder folder;
  const auto path = folder.Write("log.jsonl",
                                 "{\"loss\":1.5,\"step\":1}\n{\"loss\":2.5,\"step\":12}\n"
                                 "{\"loss\":null,\"step\":2}\n{\"loss\":3.5,\"step\":3}\n");
  EXPECT_EQ(ValueAt(path, 1, "loss"), 1.5);
  EXPECT_EQ(ValueAt(path, 12, "loss"), 2.5);
  EXPECT_EQ(ValueAt(path, 2, "loss"), std::nullopt);
  EXPECT_EQ(ValueAt(path, 4, "loss"), std::nullopt);
  EXPECT_EQ(ValueAt(folder / "none.jsonl", 1, "loss"), std::nullopt);
}

TEST(RunProgressTest, ARunThatHasNotBegunHasNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(TotalSteps(folder / "run"), 0);
  EXPECT_THAT(CheckpointSteps(folder / "run"), IsEmpty());
  EXPECT_EQ(TrainedTokens(folder.path()), std::nullopt);
}

TEST(RunProgressTest, ResultsAreATable) {
  const TemporaryFolder folder;
  folder.Write("run/train_log.jsonl",
               "{\"loss\":1.5,\"step\":1,\"token_accuracy\":0.5}\n{\"loss\":0.5,\"step\":2}\n");
  folder.Write("run/eval_log.jsonl", "{\"eval_loss\":0.75,\"step\":2}\n");
  WriteResultFile(folder / "run", folder / "result.csv");
  EXPECT_EQ(ReadTextFile(folder / "result.csv"),
            "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n"
            "1,1.5,0.5,,\n2,0.5,,0.75,\n");
}

TEST(JobEventsTest, KeepsEventsOverARestartAndDropsWhatWasCutOff) {
  const TemporaryFolder folder;
  const auto path = folder / "events.jsonl";
  OrderedJson before;
  {
    JobEvents events(path, "ftjob-x");
    events.Say("info", "begun");
    events.AddMetrics("step 1", {{"step", 1}, {"train_loss", 0.5}});
    events.AddMetrics("step 2", {{"step", 2}, {"train_loss", 0.25}});
    before = events.Page({});
  }
  Append(path, "{\"level\":\"in");
  JobEvents events(path, "ftjob-x");
  EXPECT_EQ(events.Page({}), before);
  EXPECT_EQ(events.last_step(), 2);
  events.Say("info", "more");
  const OrderedJson page = events.Page({.limit = 2});
  EXPECT_EQ(page["data"][0]["message"], "more");
  EXPECT_EQ(page["data"][0]["object"], "fine_tuning.job.event");
  EXPECT_EQ(page["data"][1]["data"]["step"], 2);
  EXPECT_EQ(page["data"][1]["type"], "metrics");
  EXPECT_EQ(page["has_more"], true);
  EXPECT_THROW(events.Page({.after = "ftevent-x-99"}), ApiError);
}

// What a training warns of, once, and not what one before it has printed.
TEST(JobWatchTest, WarningsOfTheTrainingAreEvents) {
  const TemporaryFolder folder;
  JobStore jobs(folder / "jobs", [](const std::string&) {});
  JobEntry& entry = jobs.Add({});
  const auto log = folder.Write("log", "warning: old\n");
  JobWatch watch(jobs, entry, {.run = folder / "run", .log = log});
  Append(log, "steps: 1\nwarning: few steps\nwarning: with");
  watch.Follow();
  watch.Follow();
  Append(log, "out an end\n");
  watch.Follow();
  const OrderedJson page = entry.events.Page({.limit = 3});
  EXPECT_EQ(page["data"][0]["message"], "without an end");
  EXPECT_EQ(page["data"][0]["level"], "warn");
  EXPECT_EQ(page["data"][1]["message"], "few steps");
  EXPECT_EQ(page["data"][2]["level"], "info");
}

// As on a disk that was full for a while.
TEST(JobWatchTest, AStepWhoseEventCouldNotBeWrittenIsToldLater) {
  const TemporaryFolder folder;
  JobStore jobs(folder / "jobs", [](const std::string&) {});
  JobEntry& entry = jobs.Add({});
  folder.Write("run/train_log.jsonl", "{\"loss\":1.5,\"step\":1}\n");
  JobWatch watch(jobs, entry, {.run = folder / "run"});
  std::filesystem::remove_all(folder / "jobs");
  EXPECT_THROW(watch.Follow(), Error);
  EXPECT_EQ(entry.events.last_step(), 0);
  MakeDirectories(folder / "jobs");
  watch.Follow();
  EXPECT_EQ(entry.events.last_step(), 1);
  watch.Follow();
  const std::string events = ReadTextFile(jobs.PathOf(entry.job, ".events.jsonl"));
  EXPECT_EQ(std::ranges::count(events, '\n'), 1) << events;
}

TEST(JobEventsTest, ADamagedLineIsAnEventOfItsOwn) {
  const TemporaryFolder folder;
  const auto path = folder.Write("events.jsonl", "{\"level\": \"in\n[1]\n");
  JobEvents events(path, "ftjob-x");
  events.Say("info", "whole");
  const OrderedJson page = events.Page({});
  ASSERT_EQ(page["data"].size(), 3);
  EXPECT_EQ(page["data"][0]["message"], "whole");
  for (int i : {1, 2}) {
    EXPECT_EQ(page["data"][i]["level"], "warn");
    EXPECT_EQ(page["data"][i]["created_at"], 0);
  }
}

}  // namespace
}  // namespace qlora
