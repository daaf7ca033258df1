#include "train/recipe.h"

#include "base/check.h"
#include "train/memory_plan.h"
#include "train/train_log.h"

namespace qlora {
namespace {

// One entry that is no plain name is "all-linear" or a regular expression.
ModuleSelection ToSelection(const std::vector<std::string>& modules) {
  if (modules.size() != 1) return modules;
  const std::string& only = modules.front();
  if (only == "all" || only == "all-linear") return std::string("all-linear");
  const bool is_name = only.find_first_of("*+?()[]{}|^$\\") == std::string::npos;
  if (is_name) return modules;
  return only;
}

}  // namespace

void CheckOptions(const TrainOptions& o) {
  const auto positive = [](const char* name, auto value) {
    if (!(value > 0)) ThrowInvalidInput("{} must be positive, found {}", name, value);
  };
  const auto share = [](const char* name, double value) {
    if (!(value >= 0 && value < 1)) {
      ThrowInvalidInput("{} must be at least 0 and below 1, found {}", name, value);
    }
  };
  const auto not_negative = [](const char* name, auto value) {
    if (!(value >= 0)) ThrowInvalidInput("{} must be 0 or more, found {}", name, value);
  };
  positive("lora_r", o.lora_r);
  positive("lora_alpha", o.lora_alpha);
  positive("per_device_train_batch_size", o.per_device_train_batch_size);
  positive("gradient_accumulation_steps", o.gradient_accumulation_steps);
  positive("logging_steps", o.logging_steps);
  positive("adam_epsilon", o.adam_epsilon);
  if (o.max_steps <= 0) positive("num_train_epochs", o.num_train_epochs);
  share("lora_dropout", o.lora_dropout);
  share("adam_beta1", o.adam_beta1);
  share("adam_beta2", o.adam_beta2);
  share("warmup_ratio", o.warmup_ratio);
  not_negative("learning_rate", o.learning_rate);
  not_negative("weight_decay", o.weight_decay);
  not_negative("max_grad_norm", o.max_grad_norm);
  not_negative("warmup_steps", o.warmup_steps);
  not_negative("save_steps", o.save_steps);
  not_negative("eval_steps", o.eval_steps);
  not_negative("save_total_limit", o.save_total_limit);
  not_negative("early_stopping_patience", o.early_stopping_patience);
  not_negative("early_stopping_threshold", o.early_stopping_threshold);
  not_negative("sample_steps", o.sample_steps);
  positive("sample_max_new_tokens", o.sample_max_new_tokens);
  ParseReportTo(o.report_to);
  positive("max_skipped_steps", o.max_skipped_steps);
  const bool needs_eval = o.load_best_model_at_end || o.early_stopping_patience > 0;
  if (needs_eval && o.data.eval_dataset.empty() && o.data.val_set_size == 0) {
    ThrowInvalidInput(
        "{} needs evaluation data: set eval_dataset or val_set_size",
        o.load_best_model_at_end ? "load_best_model_at_end" : "early_stopping_patience");
  }
  if (o.data.dataset.empty()) ThrowInvalidInput("no dataset given: set dataset to a file");
  if (!o.max_memory.empty()) ParseBytes(o.max_memory);
}

AdapterConfig ToAdapterConfig(const TrainOptions& options) {
  AdapterConfig config;
  config.base_model_name_or_path = options.model_name_or_path;
  config.r = options.lora_r;
  config.lora_alpha = options.lora_alpha;
  config.lora_dropout = options.lora_dropout;
  config.target_modules = ToSelection(options.lora_target_modules);
  config.use_rslora = options.use_rslora;
  return config;
}

}  // namespace qlora
