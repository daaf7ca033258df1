#include "serve/jobs/training_config.h"

#include <variant>

#include "base/text.h"
#include "io/json.h"
#include "qlora/options.h"
#include "qlora/train_options.h"

namespace qlora {
namespace {

// Checkpoints and evaluations of a run: at the end of each of its epochs at least, up to ten.
constexpr std::int64_t kMostSaves = 10;
// The newest ones stay.
constexpr std::int64_t kKeptSaves = 3;
constexpr std::int64_t kLoggingSteps = 100;

// Every option of a group that is not empty.
template <typename Fields>
void AddOptions(Fields fields, OrderedJson& config) {
  OptionTable table;
  fields.Declare(table);
  for (const Option& option : table.options()) {
    if (option.ToString().empty()) continue;
    std::visit([&](const auto* value) { config[option.name] = *value; }, option.value);
  }
}

void AddBase(const ModelOptions& base, OrderedJson& config) {
  config["model_name_or_path"] = base.model_name_or_path;
  config["compute_dtype"] = base.compute_dtype;
  config["device"] = base.device;
  AddOptions(base.chat, config);
  if (base.load_in_4bit == "auto") return;
  config["load_in_4bit"] = base.load_in_4bit;
  if (base.load_in_4bit == "true") AddOptions(base.quantization, config);
}

void AddSchedule(const JobRequest& request, bool evaluates, OrderedJson& config) {
  if (request.n_epochs > kMostSaves) {
    config["save_ratio"] = 1 / static_cast<double>(kMostSaves);
    if (evaluates) config["eval_ratio"] = config["save_ratio"];
  } else {
    config["saves_per_epoch"] = (kMostSaves + request.n_epochs - 1) / request.n_epochs;
    if (evaluates) config["evals_per_epoch"] = config["saves_per_epoch"];
  }
  config["save_total_limit"] = kKeptSaves;
}

}  // namespace

OrderedJson TrainingConfig(const Job& job, const ModelOptions& base, const TrainingFiles& files) {
  const JobRequest& request = job.request;
  OrderedJson config;
  AddBase(base, config);
  if (!job.adapter.empty()) config["adapter"] = job.adapter;
  config["dataset"] = {files.training.string()};
  if (!files.validation.empty()) config["eval_dataset"] = {files.validation.string()};
  config["output_dir"] = files.run.string();
  // A step of as many examples as was said, in micro-batches of two where that is even.
  config["global_batch_size"] = request.batch_size;
  config["per_device_train_batch_size"] = request.batch_size % 2 == 0 ? 2 : 1;
  config["num_train_epochs"] = request.n_epochs;
  const bool is_dpo = request.method == TrainingMethod::kDpo;
  config["learning_rate"] =
      (is_dpo ? kUsualPreferenceRate : kUsualLearningRate) * request.learning_rate_multiplier;
  config["seed"] = request.seed;
  if (is_dpo) {
    config["preference_loss"] = "sigmoid";
    config["beta"] = request.beta;
  }
  AddSchedule(request, !files.validation.empty(), config);
  config["logging_steps"] = kLoggingSteps;
  return config;
}

std::string ClientMessage(std::string message, const TrainingFiles& files,
                          const std::string& training_name, const std::string& validation_name) {
  message = message.substr(0, message.find('\n'));
  message = ReplaceAll(message, files.training.string(), training_name);
  if (!files.validation.empty()) {
    message = ReplaceAll(message, files.validation.string(), validation_name);
  }
  return ReplaceAll(message, files.run.string(), "the run");
}

}  // namespace qlora
