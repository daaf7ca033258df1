// A server's jobs, with trainings that the test leads.
#ifndef QLORA_TESTS_SERVE_JOBS_FINE_TUNING_FIXTURE_H_
#define QLORA_TESTS_SERVE_JOBS_FINE_TUNING_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/jobs/job_stubs.h"
#include "temporary_folder.h"

namespace qlora {

inline constexpr const char* kRow =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";

inline int StatusOf(const std::function<void()>& call) {
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

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_JOBS_FINE_TUNING_FIXTURE_H_
