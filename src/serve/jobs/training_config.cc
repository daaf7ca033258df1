#include "serve/jobs/training_config.h"

#include <optional>
#include <variant>

#include "base/file.h"
#include "io/json.h"
#include "model/base_record.h"
#include "prompt/turn_template.h"
#include "qlora/options.h"
#include "qlora/train_options.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

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

// What is no path, as a name of the hub, stays.
std::string FromAnywhere(const std::string& name) {
  return Exists(name) ? fs::absolute(name).lexically_normal().string() : name;
}

// Which mean the same in every folder, whatever files there are.
bool IsNameOfTemplate(const std::string& name) {
  return name == "chatml" || name == "plain" || FindTurnPieces(name);
}

void AddBase(const ModelOptions& base, OrderedJson& config) {
  config["model_name_or_path"] = BaseOfTraining(base);
  config["compute_dtype"] = base.compute_dtype;
  config["device"] = base.device;
  AddOptions(base.chat, config);
  const std::string& chat = base.chat.chat_template;
  if (!chat.empty() && !IsNameOfTemplate(chat)) config["chat_template"] = FromAnywhere(chat);
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

std::string NameWithin(const fs::path& folder, const fs::path& path) {
  const fs::path outer = WithoutLinks(folder);
  const fs::path inner = WithoutLinks(path);
  return (Contains(outer, inner) ? inner.lexically_relative(outer) : inner).string();
}

std::string BaseOfTraining(const ModelOptions& base) {
  return FromAnywhere(base.model_name_or_path);
}

OrderedJson TrainingConfig(const Job& job, const ModelOptions& base, const TrainingFiles& files,
                           std::int64_t max_length) {
  const JobRequest& request = job.request;
  OrderedJson config;
  AddBase(base, config);
  if (!job.adapter.empty()) config["adapter"] = job.adapter;
  if (!job.chat_template.empty()) config["chat_template"] = job.chat_template;
  config["dataset"] = {files.training};
  if (!files.validation.empty()) config["eval_dataset"] = {files.validation};
  config["max_length"] = max_length;
  config["over_long"] = "truncate";
  config["output_dir"] = files.run;
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

fs::path TextTemplateOf(const fs::path& adapter) {
  const std::optional<PromptLayout> layout = LoadLayout(adapter);
  const fs::path file = adapter / kChatTemplateFile;
  const bool is_text = layout && layout->kind == PromptLayout::Kind::kText;
  return is_text && Exists(file) ? file : fs::path();
}

}  // namespace qlora
