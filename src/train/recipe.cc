#include "train/recipe.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "model/lora_init.h"
#include "model/weights.h"
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

// Names of the linears of a layer, without the layer: "q_proj", sorted.
std::vector<std::string> LinearNamesOf(const DecoderConfig& decoder) {
  std::vector<std::string> names;
  LinearPaths(decoder, 0).ForEach([&](const std::string& path) {
    names.push_back(path.substr(path.rfind('.') + 1));
  });
  std::sort(names.begin(), names.end());
  return names;
}

// "4-7" -> 4, 5, 6, 7.
std::vector<std::int64_t> ToLayers(const std::vector<std::string>& ranges, std::int64_t layers) {
  std::vector<std::int64_t> out;
  for (const std::string& range : ranges) {
    std::int64_t first = -1;
    std::int64_t last = -1;
    const char* end = range.data() + range.size();
    auto parsed = std::from_chars(range.data(), end, first);
    last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    }
    if (parsed.ec != std::errc() || parsed.ptr != end || first < 0 || last < first ||
        last >= layers) {
      ThrowInvalidInput(
          "layers_to_transform: expected layers of this model, 0 to {}, as a number or a range "
          "such "
          "as 4-7, found '{}'",
          layers - 1, range);
    }
    for (std::int64_t l = first; l <= last; ++l) out.push_back(l);
  }
  return out;
}

// "down_proj=8" -> ("down_proj", 8).
std::vector<std::pair<std::string, double>> ToPatterns(const char* key,
                                                       const std::vector<std::string>& entries) {
  std::vector<std::pair<std::string, double>> out;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.rfind('=');
    double value = 0;
    const char* end = entry.data() + entry.size();
    const auto parsed = std::from_chars(
        entry.data() + (equals == std::string::npos ? entry.size() : equals + 1), end, value);
    if (equals == 0 || parsed.ec != std::errc() || parsed.ptr != end || !(value > 0)) {
      ThrowInvalidInput("{}: expected module=value with a positive value, found '{}'", key, entry);
    }
    out.emplace_back(entry.substr(0, equals), value);
  }
  return out;
}

std::int64_t ToRank(double value) {
  if (value != std::floor(value)) {
    ThrowInvalidInput("rank_pattern: a rank is a whole number, found {}", value);
  }
  return static_cast<std::int64_t>(value);
}

// Twice the ranks with the same scales.
void DoubleRank(AdapterConfig& config) {
  const double factor = config.use_rslora ? std::sqrt(2.0) : 2.0;
  config.r *= 2;
  config.lora_alpha *= factor;
  for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= factor;
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
  share("sgd_momentum", o.sgd_momentum);
  positive("loraplus_lr_ratio", o.loraplus_lr_ratio);
  positive("lr_scheduler_cycles", o.lr_scheduler_cycles);
  not_negative("embedding_learning_rate", o.embedding_learning_rate);
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
  not_negative("neftune_noise_alpha", o.neftune_noise_alpha);
  if (o.init_lora_weights != "default") {
    const std::string init = "init_lora_weights " + o.init_lora_weights;
    if (!o.adapter.empty()) {
      ThrowInvalidInput("{} sets A and B anew; it cannot be combined with adapter", init);
    }
    if (o.use_dora) ThrowInvalidInput("{} cannot be combined with use_dora", init);
    if (DoublesRank(ParseLoraInit(o.init_lora_weights)) && o.weight_decay != 0) {
      ThrowInvalidInput("{} holds half of the adapter fixed; it needs weight_decay 0", init);
    }
  }
  const bool needs_eval = o.load_best_model_at_end || o.early_stopping_patience > 0;
  if (needs_eval && o.data.eval_dataset.empty() && o.data.val_set_size == 0) {
    ThrowInvalidInput(
        "{} needs evaluation data: set eval_dataset or val_set_size",
        o.load_best_model_at_end ? "load_best_model_at_end" : "early_stopping_patience");
  }
  if (o.data.dataset.empty()) ThrowInvalidInput("no dataset given: set dataset to a file");
  if (!o.max_memory.empty()) ParseBytes(o.max_memory);
}

AdapterConfig ToAdapterConfig(const TrainOptions& options, const DecoderConfig& decoder) {
  AdapterConfig config;
  config.base_model_name_or_path = options.model_name_or_path;
  config.r = options.lora_r;
  config.lora_alpha = options.lora_alpha;
  config.lora_dropout = options.lora_dropout;
  config.target_modules = ToSelection(options.lora_target_modules);
  if (config.target_modules == ModuleSelection("all-linear")) {
    config.target_modules = LinearNamesOf(decoder);
  }
  if (!options.exclude_modules.empty()) {
    config.exclude_modules = ToSelection(options.exclude_modules);
  }
  config.layers_to_transform = ToLayers(options.layers_to_transform, decoder.num_hidden_layers);
  for (const auto& [pattern, value] : ToPatterns("rank_pattern", options.rank_pattern)) {
    config.rank_pattern.emplace_back(pattern, ToRank(value));
  }
  for (const auto& [pattern, value] : ToPatterns("alpha_pattern", options.alpha_pattern)) {
    config.alpha_pattern.emplace_back(pattern, value);
  }
  config.use_rslora = options.use_rslora;
  config.use_dora = options.use_dora;
  if (DoublesRank(ParseLoraInit(options.init_lora_weights))) DoubleRank(config);
  return config;
}

OptimizerType OptimizerOf(const TrainOptions& options) {
  OptimizerType type = ParseOptimizer(options.optim);
  type.momentum = options.sgd_momentum > 0;
  return type;
}

UpdateArgs UpdateArgsOf(const TrainOptions& options) {
  UpdateArgs args;
  args.rule = OptimizerOf(options).rule;
  args.beta1 = args.rule == UpdateRule::kSgd ? options.sgd_momentum : options.adam_beta1;
  args.beta2 = options.adam_beta2;
  args.epsilon = options.adam_epsilon;
  args.weight_decay = options.weight_decay;
  return args;
}

GroupRates GroupRatesOf(const TrainOptions& options) {
  GroupRates rates;
  rates.b = options.loraplus_lr_ratio;
  if (options.embedding_learning_rate > 0 && options.learning_rate > 0) {
    rates.embedding = options.embedding_learning_rate / options.learning_rate;
  }
  return rates;
}

}  // namespace qlora
