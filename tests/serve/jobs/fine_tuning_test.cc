#include "serve/jobs/fine_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "model/base_record.h"
#include "serve/api_error.h"
#include "serve/jobs/job_stubs.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr const char* kRow =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";

int StatusOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const ApiError& error) {
    return error.status;
  }
  return 200;
}

class FineTuningTest : public testing::Test {
 protected:
  FineTuningTest() { Start(); }

  // A server on the folder, or the next one on it.
  void Start() {
    jobs_.reset();
    models_ = std::make_unique<NamedModels>();
    models_->room = room_;
    FineTuningOptions options{.folder = runs_, .base_fingerprint = weights_, .file_bytes = 1000};
    options.base.model_name_or_path = "model";
    options.memory_left = [] { return std::int64_t{12345}; };
    jobs_ = std::make_unique<FineTuning>(
        std::move(options), *models_,
        [this](const TrainingTask& task, const std::function<StopRequest()>& watch) {
          tasks_.push_back(task);
          ++running_;
          most_running_ = std::max<int>(most_running_, running_);
          const TrainingEnd end = training_.Run(task, watch);
          --running_;
          return end;
        },
        [this](const std::string& line) { log_ += line + "\n"; });
  }
  std::string Upload(const std::string& text = kRow) {
    FileStore& files = jobs_->files();
    const auto upload = files.NewUpload();
    WriteTextFile(upload, text);
    return files.Add(upload, "words.jsonl", kTrainingPurpose).id;
  }
  std::string Create(const OrderedJson& more = OrderedJson::object()) {
    OrderedJson body = {{"model", "base"}, {"training_file", Upload()}, {"suffix", "s"}};
    body.update(more);
    return jobs_->Create(body)["id"].get<std::string>();
  }
  // Waits for the thread of the jobs, as long as the job may still come to this status.
  OrderedJson WaitFor(const std::string& id, const std::string& status) {
    while (true) {
      OrderedJson job = jobs_->Get(id);
      if (job["status"] == status) return job;
      if (!job["finished_at"].is_null()) {
        ADD_FAILURE() << "expected " << status << ", found " << job.dump();
        return {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::vector<std::int64_t> MetricSteps(const std::string& id) {
    std::vector<std::int64_t> steps;
    const OrderedJson page = jobs_->Events(id, {.limit = 100});
    for (const OrderedJson& event : page["data"]) {
      if (event["type"] == "metrics") {
        steps.insert(steps.begin(), event["data"]["step"].get<std::int64_t>());
      }
    }
    return steps;
  }
  void WaitForStep(const std::string& id, std::int64_t step) {
    for (std::vector<std::int64_t> steps; steps.empty() || steps.back() < step;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      steps = MetricSteps(id);
    }
  }
  // The training waits before this step, until the test lets it go on.
  void StopBefore(std::int64_t step) {
    gate_ = step;
    training_.may_step = [this](std::int64_t next) { return next < gate_; };
  }

  // The names of adapters, without what jobs have in common.
  std::vector<std::string> Served() const {
    std::vector<std::string> names;
    for (const ServedModelPtr& model : models_->All()) {
      if (!model->parent.empty()) names.push_back(model->name);
    }
    return names;
  }
  // "JOB's model:ckpt-step-N"; 0: the whole run.
  std::string ModelOf(const std::string& id, std::int64_t step = 0) const {
    const std::string name = "ft:base:local:s:" + id.substr(id.size() - 8);
    return step == 0 ? name : name + ":ckpt-step-" + std::to_string(step);
  }

  // The arguments of a training lead from the folder where it runs.
  Json ConfigOf(std::int64_t task) const {
    return ReadJsonFile(tasks_.at(task).run.parent_path() / tasks_.at(task).arguments.at(1));
  }
  std::filesystem::path RecordOf(const std::string& id) const {
    return runs_ / "jobs" / (id + ".json");
  }

  TemporaryFolder folder_;
  std::filesystem::path runs_ = folder_.path();
  std::string weights_ = "a";  // of the base
  std::int64_t room_ = 1000;
  std::string log_;  // to be read while no job runs
  std::atomic<std::int64_t> gate_ = 1'000'000;
  std::atomic<int> running_ = 0;
  std::atomic<int> most_running_ = 0;
  StubTraining training_;
  std::vector<TrainingTask> tasks_;
  std::unique_ptr<NamedModels> models_;
  std::unique_ptr<FineTuning> jobs_;
};

TEST_F(FineTuningTest, AJobBecomesAModelWithCheckpointsAndAResult) {
  const std::string id = Create();
  const OrderedJson job = WaitFor(id, "succeeded");
  EXPECT_EQ(job["trained_tokens"], 40);
  EXPECT_TRUE(job["error"].is_null());
  EXPECT_GE(job["finished_at"], job["created_at"]);
  const auto model = job["fine_tuned_model"].get<std::string>();
  EXPECT_THAT(model, HasSubstr("ft:base:local:s:"));
  EXPECT_TRUE(models_->Has(model));
  EXPECT_EQ(MetricSteps(id), (std::vector<std::int64_t>{1, 2, 3, 4}));
  const OrderedJson checkpoints = jobs_->Checkpoints(id, {});
  ASSERT_EQ(checkpoints["data"].size(), 2);
  EXPECT_EQ(checkpoints["data"][0]["step_number"], 4);
  EXPECT_EQ(checkpoints["data"][0]["metrics"]["train_loss"], 0.25);
  EXPECT_TRUE(models_->Has(checkpoints["data"][1]["fine_tuned_model_checkpoint"]));
  const StoredFile result = jobs_->files().Get(job["result_files"][0]);
  EXPECT_EQ(result.purpose, kResultPurpose);
  EXPECT_THAT(ReadTextFile(jobs_->files().PathOf(result)), HasSubstr("\n2,0.5,"));
}

TEST_F(FineTuningTest, PreferencesHaveALossAndARateOfTheirOwn) {
  const std::string pair =
      R"({"input": {"messages": [{"role": "user", "content": "q"}]}, "preferred_output": )"
      R"([{"role": "assistant", "content": "a"}], "non_preferred_output": )"
      R"([{"role": "assistant", "content": "b"}]})";
  const OrderedJson hyperparameters = {{"batch_size", 4}, {"learning_rate_multiplier", 2}};
  const std::string id =
      Create({{"training_file", Upload(pair)},
              {"method", {{"type", "dpo"}, {"dpo", {{"hyperparameters", hyperparameters}}}}}});
  WaitFor(id, "succeeded");
  const Json config = ConfigOf(0);
  EXPECT_EQ(config["preference_loss"], "sigmoid");
  EXPECT_EQ(config["beta"], 0.1);
  EXPECT_EQ(config["learning_rate"], 1e-5);
  EXPECT_EQ(config["per_device_train_batch_size"], 2);
}

TEST_F(FineTuningTest, TheTrainingIsTheProgramItself) {
  const std::string id = Create({{"seed", 5}, {"hyperparameters", {{"batch_size", 3}}}});
  WaitFor(id, "succeeded");
  ASSERT_EQ(tasks_.size(), 1);
  const std::vector<std::string>& arguments = tasks_[0].arguments;
  EXPECT_EQ(arguments[0], "train");
  EXPECT_EQ(arguments[2], "--json");
  EXPECT_EQ(arguments[3], "--max_memory");
  EXPECT_EQ(arguments[4], "12345B");
  const Json config = ConfigOf(0);
  EXPECT_EQ(config["seed"], 5);
  EXPECT_EQ(config["global_batch_size"], 3);
  EXPECT_EQ(config["per_device_train_batch_size"], 1);
  EXPECT_EQ(config["learning_rate"], 2e-4);
  EXPECT_EQ(config["output_dir"], id);
}

TEST_F(FineTuningTest, OneRunsAndOthersWait) {
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

TEST_F(FineTuningTest, CancelEndsWhatRunsAndWhatWaits) {
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

TEST_F(FineTuningTest, APausedJobGoesOnWhereItWas) {
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
TEST_F(FineTuningTest, AJobWithoutACheckpointBeginsAnew) {
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
TEST_F(FineTuningTest, ATrainingThatSomebodyStopsIsPaused) {
  training_.exit_code = 130;
  const std::string id = Create();
  EXPECT_TRUE(WaitFor(id, "paused")["error"].is_null());
  training_.exit_code = 0;
  jobs_->Resume(id);
  WaitFor(id, "succeeded");
}

TEST_F(FineTuningTest, TheNextServerGoesOnWithTheJobs) {
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

TEST_F(FineTuningTest, AFolderMayBeMovedAndSpelledInAnotherWay) {
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

TEST_F(FineTuningTest, AnAdapterThatIsGoneIsNamed) {
  const std::string first = Create();
  WaitFor(first, "succeeded");
  StopBefore(1);
  const std::string running = Create();
  const std::string id = Create({{"model", ModelOf(first)}});
  std::filesystem::remove_all(runs_ / first);
  jobs_->Cancel(running);
  const OrderedJson error = WaitFor(id, "failed")["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
}

// Such an adapter is asked in the form of its texts, which `train` does not take by itself.
TEST_F(FineTuningTest, ConversationsForAnAdapterOfTextsHaveTheirForm) {
  const std::string first = Create();
  WaitFor(first, "succeeded");
  BaseRecord record;
  record.chat_template = "{{ messages }}";
  record.prompts.layout = PromptLayout{.kind = PromptLayout::Kind::kText,
                                       .format = RecordFormat::kPromptCompletion,
                                       .prompt_template = "{prompt}",
                                       .completion_template = "{completion}"};
  SaveBaseRecord(runs_ / first, record);
  const std::string chat = Create({{"model", ModelOf(first)}});
  WaitFor(chat, "succeeded");
  EXPECT_EQ(ConfigOf(1)["chat_template"], first + "/chat_template.jinja");
  const std::string texts = Upload(R"({"prompt": "q", "completion": "a"})");
  WaitFor(Create({{"model", ModelOf(first)}, {"training_file", texts}}), "succeeded");
  EXPECT_FALSE(ConfigOf(2).contains("chat_template"));
}

TEST_F(FineTuningTest, JobsOfAnotherBaseWaitForAServerWithIt) {
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

TEST_F(FineTuningTest, ModelsGoBeforeCheckpointsAndTheNewestFirst) {
  room_ = 3;
  Start();
  const std::string first = Create();
  WaitFor(first, "succeeded");
  const std::string second = Create();
  WaitFor(second, "succeeded");
  // The checkpoints that made room are the oldest ones.
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(first), ModelOf(second), ModelOf(first, 4)));
  room_ = 2;
  const std::string third = Create();
  WaitFor(third, "succeeded");
  Start();
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(third), ModelOf(second)));
  // What was left out takes the room of what is deleted.
  jobs_->RemoveModel(ModelOf(second));
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(third), ModelOf(first)));
}

TEST_F(FineTuningTest, CheckpointsOfJobsThatEndOtherwiseAreServed) {
  StopBefore(3);
  const std::string cancelled = Create();
  WaitForStep(cancelled, 2);
  jobs_->Cancel(cancelled);
  WaitFor(cancelled, "cancelled");
  EXPECT_TRUE(models_->Has(ModelOf(cancelled, 2)));
  const std::string paused = Create();
  WaitForStep(paused, 2);
  jobs_->Pause(paused);
  WaitFor(paused, "paused");
  EXPECT_FALSE(models_->Has(ModelOf(paused, 2)));
  jobs_->Cancel(paused);
  EXPECT_TRUE(models_->Has(ModelOf(paused, 2)));
  gate_ = 1000;
  training_.exit_code = 137;
  training_.output = "";
  const std::string killed = Create();
  const OrderedJson error = WaitFor(killed, "failed")["error"];
  EXPECT_EQ(error["code"], "insufficient_memory");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("SIGKILL"));
  EXPECT_TRUE(models_->Has(ModelOf(killed, 4)));
}

TEST_F(FineTuningTest, AModelThatIsDeletedWhileItIsLoadedIsGone) {
  models_->on_load = [&](const std::string& name) {
    if (name.ends_with(":ckpt-step-2")) jobs_->RemoveModel(name);
  };
  const std::string id = Create();
  WaitFor(id, "succeeded");
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(id), ModelOf(id, 4)));
}

// A disk that takes no more.
TEST_F(FineTuningTest, ATrainingThatIsDoneIsAModelWhateverItsRecordLacks) {
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

TEST_F(FineTuningTest, AFileThatIsGoneIsNamed) {
  StopBefore(1);
  const std::string file = Upload();
  const std::string id = Create({{"training_file", file}});
  const auto path = jobs_->files().PathOf({.id = file});
  jobs_.reset();
  std::filesystem::remove(path);
  Start();
  const OrderedJson error = WaitFor(id, "failed")["error"];
  EXPECT_EQ(error["param"], "training_file");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(file + " is no longer there"));
}

// While the server still answers what it has begun.
TEST_F(FineTuningTest, ARunningJobEndsBeforeItsServer) {
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

TEST_F(FineTuningTest, ARunThatEndedBeforeItsServerKnewIsTaken) {
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

TEST_F(FineTuningTest, AFailureHasTheNamesOfTheClient) {
  training_.exit_code = 2;
  StopBefore(1);
  const std::string file = Upload();
  training_.output =
      FormatJson(Json{{"ok", false}, {"error", "files/" + file + ".jsonl:1: bad\nmore"}});
  const std::string id = Create({{"training_file", file}});
  gate_ = 1000;
  const OrderedJson job = WaitFor(id, "failed");
  EXPECT_EQ(job["error"]["message"], "words.jsonl:1: bad");
  EXPECT_EQ(job["error"]["code"], "invalid_training_file");
  EXPECT_TRUE(job["fine_tuned_model"].is_null());
}

TEST_F(FineTuningTest, ABadFileIsRefusedWithItsLine) {
  try {
    Create({{"training_file", Upload(std::string(kRow) + "\n{}\n")}});
    ADD_FAILURE() << "taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_THAT(error.message, HasSubstr("words.jsonl: line 2: "));
  }
  EXPECT_EQ(StatusOf([&] { Create({{"training_file", "file-none"}}); }), 404);
  EXPECT_EQ(StatusOf([&] { Create({{"validation_file", "../../etc/passwd"}}); }), 404);
  EXPECT_EQ(StatusOf([&] { Create({{"model", "other"}}); }), 404);
}

TEST_F(FineTuningTest, AFileInUseStays) {
  StopBefore(2);
  const std::string file = Upload();
  const std::string id = Create({{"training_file", file}});
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveFile(file); }), 400);
  gate_ = 1000;
  WaitFor(id, "succeeded");
  jobs_->RemoveFile(file);
}

TEST_F(FineTuningTest, OnlyModelsOfJobsAreDeleted) {
  const std::string id = Create();
  const auto model = WaitFor(id, "succeeded")["fine_tuned_model"].get<std::string>();
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel("base"); }), 400);
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel("ft:base:local:s:other"); }), 404);
  jobs_->RemoveModel(model);
  EXPECT_FALSE(models_->Has(model));
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel(model); }), 404);
  EXPECT_EQ(jobs_->Get(id)["status"], "succeeded");
  Start();
  EXPECT_FALSE(models_->Has(model));
}

TEST_F(FineTuningTest, ListsTheNewestFirstAndByMetadata) {
  const std::string first = Create({{"metadata", {{"mark", "x"}}}});
  const std::string second = Create();
  WaitFor(second, "succeeded");
  const OrderedJson all = jobs_->List({}, {});
  ASSERT_EQ(all["data"].size(), 2);
  EXPECT_EQ(all["data"][0]["id"], second);
  const OrderedJson marked = jobs_->List({}, {{"mark", "x"}});
  ASSERT_EQ(marked["data"].size(), 1);
  EXPECT_EQ(marked["data"][0]["id"], first);
  EXPECT_TRUE(jobs_->List({}, {{"mark", "y"}})["data"].empty());
}

TEST_F(FineTuningTest, LeavesOutDamagedJobsAndSaysSo) {
  const std::string id = Create();
  WaitFor(id, "succeeded");
  for (const char* text : {"{", "", "{}", "[]", "null"}) {
    jobs_.reset();
    WriteTextFile(RecordOf(id), text);
    log_.clear();
    Start();
    EXPECT_TRUE(jobs_->List({}, {})["data"].empty());
    EXPECT_EQ(StatusOf([&] { jobs_->Get(id); }), 404);
    EXPECT_THAT(log_, HasSubstr(RecordOf(id).string() + ": ")) << text;
    EXPECT_THAT(log_, HasSubstr(id + " is left out: mend the file, or remove it")) << text;
    EXPECT_EQ(std::ranges::count(log_, '\n'), 1) << log_;
    EXPECT_EQ(ReadTextFile(RecordOf(id)), text);
  }
}

TEST_F(FineTuningTest, OnlyUploadsGoToFiles) {
  const auto body_of = [&](const char* method, const char* path) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    return jobs_->BodyOf(request);
  };
  const auto body = body_of("POST", "/v1/files");
  ASSERT_TRUE(body.has_value());
  EXPECT_EQ(std::filesystem::path(body->file).parent_path(), folder_.path() / "files");
  EXPECT_GE(body->limit, 1000);
  EXPECT_FALSE(body_of("GET", "/v1/files"));
  EXPECT_FALSE(body_of("POST", "/v1/chat/completions"));
}

}  // namespace
}  // namespace qlora
