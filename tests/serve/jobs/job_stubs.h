// Stand-ins for what jobs need of a server: models by name, and a training without a model.
#ifndef QLORA_TESTS_SERVE_JOBS_JOB_STUBS_H_
#define QLORA_TESTS_SERVE_JOBS_JOB_STUBS_H_

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/run_info.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/trainer.h"
#include "serve/served_models.h"

namespace qlora {

// Names and folders alone.
class NamedModels final : public ServedModels {
 public:
  NamedModels() {
    ServedModel base;
    base.name = "base";
    models_["base"] = std::make_shared<const ServedModel>(base);
  }

  std::int64_t room = 1000;  // of adapters
  // Is called before a model is there.
  std::function<void(const std::string& name)> on_load = [](const std::string&) {};

  ServedModelPtr Find(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(name.empty() ? "base" : std::string(name));
    if (found == models_.end()) throw ApiError(404, "no such model", "model", "model_not_found");
    return found->second;
  }
  std::vector<ServedModelPtr> All() const override {
    const std::lock_guard lock(mutex_);
    std::vector<ServedModelPtr> all;
    for (const auto& [name, model] : models_) all.push_back(model);
    return all;
  }
  void Load(const std::string& name, const std::string& folder) override {
    on_load(name);
    const std::lock_guard lock(mutex_);
    if (models_.count(name) > 0) throw ApiError(409, "there already");
    if (std::ssize(models_) > room) throw ApiError(400, "no room", "", kNoRoom);
    ServedModel model;
    model.name = name;
    model.parent = "base";
    model.folder = folder;
    models_[name] = std::make_shared<const ServedModel>(model);
  }
  void Unload(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    if (models_.erase(name) == 0) throw ApiError(404, "no such model");
  }
  bool Has(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return models_.count(name) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ServedModelPtr> models_;
};

inline void WriteStubFile(const std::filesystem::path& path, const Json& json) {
  WriteTextFile(path, FormatJson(json) + "\n");
}

// A training that writes what `qlora train` writes: steps with a loss of 1 / step, and a checkpoint
// after every second one, from which it goes on.
struct StubTraining {
  std::int64_t steps = 4;
  int exit_code = 0;
  std::string output = R"({"ok":true})";
  // Is asked before each step: false makes the training wait.
  std::function<bool(std::int64_t step)> may_step = [](std::int64_t) { return true; };

  TrainingEnd Run(const TrainingTask& task, const std::function<StopRequest()>& watch) const {
    std::filesystem::create_directories(task.run);
    WriteStubFile(task.run / kTrainConfig, Json::object());
    WriteStubFile(task.run / kRunInfo, {{"total_steps", steps}});
    const auto saved = ListCheckpoints(task.run);
    std::int64_t step = saved.empty() ? 0 : *StepOfCheckpoint(saved.back());
    KeepLog(task.run, step);
    while (step < steps) {
      const StopRequest stop = watch();
      if (stop == StopRequest::kNow) return {.exit_code = 137};
      if (stop == StopRequest::kCheckpoint) {
        Save(task.run, step);
        return {.exit_code = 130};
      }
      if (!may_step(step + 1)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      ++step;
      std::ofstream(task.run / "train_log.jsonl", std::ios::app)
          << FormatJson(Json{{"step", step}, {"loss", 1.0 / static_cast<double>(step)}}) << '\n';
      if (step % 2 == 0) Save(task.run, step);
    }
    if (exit_code != 0) return {.exit_code = exit_code, .output = output};
    WriteStubFile(task.run / "adapter_config.json", Json::object());
    WriteStubFile(task.run / "adapter_model.safetensors", Json::object());
    WriteStubFile(task.run / kRunInfo, {{"total_steps", steps}, {kFinishedStep, steps}});
    watch();
    return {.exit_code = 0, .output = output};
  }

 private:
  static void Save(const std::filesystem::path& run, std::int64_t step) {
    if (step == 0) return;
    std::filesystem::create_directories(CheckpointDir(run, step));
    WriteStubFile(CheckpointDir(run, step) / kTrainerState, {{"num_tokens", 10 * step}});
  }
  // Lines after the checkpoint are written again.
  static void KeepLog(const std::filesystem::path& run, std::int64_t step) {
    std::string kept;
    for (std::int64_t s = 1; s <= step; ++s) {
      kept += FormatJson(Json{{"step", s}, {"loss", 1.0 / static_cast<double>(s)}}) + "\n";
    }
    WriteTextFile(run / "train_log.jsonl", kept);
  }
};

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_JOBS_JOB_STUBS_H_
