// mlx-lm: the YAML files of `mlx_lm.lora --config`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "base/text.h"
#include "foreign/rules.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

constexpr std::string_view kDefaultLayers = "16";
constexpr const char* kDefaultIterations = "1000";
constexpr double kDefaultScale = 20;
constexpr double kDefaultRank = 8;

constexpr std::string_view kBiasCorrection = "the bias of Adam's means is always corrected";
constexpr std::string_view kFieldNames =
    "call the fields of the records prompt and completion, text or messages";

// The number of layers of a model in a folder of this machine.
std::optional<std::int64_t> LayersOf(const std::string& model) {
  const std::filesystem::path config = std::filesystem::path(model) / "config.json";
  std::error_code ignored;
  if (model.empty() || !std::filesystem::is_regular_file(config, ignored)) return {};
  try {
    return JsonGet<std::int64_t>(ReadJsonFile(config), "num_hidden_layers", config.string());
  } catch (const Error&) {
    return {};
  }
}

// Adapters are in the last layers alone.
void LastLayers(std::string_view text, MigrationTarget& target) {
  std::int64_t count = 0;
  const bool is_number =
      YAML::convert<std::int64_t>::decode(YAML::Node(std::string(text)), count) && count != 0;
  if (!is_number) return target.Unsupported("expected a number of layers, or -1 for all");
  if (count < 0) return target.NotNeeded("all layers have adapters");
  const std::optional<std::int64_t> layers = LayersOf(target.Theirs("model"));
  if (!layers) {
    target.Unsupported("the last " + std::string(text) +
                       " layers have adapters there: write layers_to_transform, such as 16-31");
  } else if (*layers <= count) {
    target.NotNeeded("all layers have adapters");
  } else {
    target.Carry("layers_to_transform",
                 YAML::Node(std::to_string(*layers - count) + "-" + std::to_string(*layers - 1)));
  }
}

void MigrateLayers(const YAML::Node& value, MigrationTarget& target) {
  LastLayers(value.IsNull() ? kDefaultLayers : TextOf(value), target);
}

void MigrateType(const YAML::Node& value, MigrationTarget& target) {
  const std::string type = TextOf(value);
  if (value.IsNull() || type == "lora") {
    target.NotNeeded("the adapter is LoRA");
  } else if (type == "dora") {
    target.Carry("use_dora", YAML::Node("true"));
  } else {
    target.Unsupported("adapters are LoRA or DoRA");
  }
}

// key: of lora_parameters. alpha: what its scale means.
void MigrateParameter(const std::string& key, const YAML::Node& value, double alpha,
                      MigrationTarget& target) {
  if (IsNone(value)) return target.NotNeeded("empty: the default");
  if (key == "rank") return target.Carry("lora_r", value);
  if (key == "alpha") return target.NotNeeded("mlx-lm reads scale alone");
  if (key == "dropout") return target.Carry("lora_dropout", value);
  if (key == "scale") return target.Carry("lora_alpha", YAML::Node(fmt::format("{}", alpha)));
  if (key != "keys" || !value.IsSequence()) return target.Unsupported("not known here");
  YAML::Node names(YAML::NodeType::Sequence);
  for (const YAML::Node& name : value) {
    // "self_attn.q_proj": the names of the linears are enough.
    const std::string text = TextOf(name);
    names.push_back(text.substr(text.rfind('.') + 1));
  }
  target.Carry("lora_target_modules", names);
}

void MigrateParameters(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsMap()) return target.NotNeeded("empty: the default");
  double scale = kDefaultScale;
  double rank = kDefaultRank;
  if (value["scale"]) YAML::convert<double>::decode(value["scale"], scale);
  if (value["rank"]) YAML::convert<double>::decode(value["rank"], rank);
  for (const auto& entry : value) {
    const std::string key = TextOf(entry.first);
    target.Part("lora_parameters." + key, entry.second);
    MigrateParameter(key, entry.second, scale * rank, target);
  }
}

// Iterations there are micro-batches. Returns the steps of the optimizer in `iterations` of them.
std::string StepsIn(const YAML::Node& iterations, const MigrationTarget& target) {
  std::int64_t count = 0;
  std::int64_t window = 1;
  YAML::convert<std::int64_t>::decode(YAML::Node(target.Theirs("grad_accumulation_steps")), window);
  if (!YAML::convert<std::int64_t>::decode(iterations, count) || window <= 1) {
    return TextOf(iterations);
  }
  return std::to_string(std::max<std::int64_t>(count / window, count > 0 ? 1 : 0));
}

void MigrateIterations(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("max_steps", YAML::Node(StepsIn(value, target)));
}

void MigrateReportEvery(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("logging_steps", YAML::Node(StepsIn(value, target)));
}

void MigrateEvalEvery(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("eval_steps", YAML::Node(StepsIn(value, target)));
}

void MigrateSaveEvery(const YAML::Node& value, MigrationTarget& target) {
  target.Carry("save_steps", YAML::Node(StepsIn(value, target)));
}

// The steps of the run.
std::string StepsOfRun(const MigrationTarget& target) {
  const std::string iterations = target.Theirs("iters");
  return StepsIn(YAML::Node(iterations.empty() ? kDefaultIterations : iterations), target);
}

// name, warmup, warmup_init, and arguments: the first rate, the steps, the last rate.
void MigrateSchedule(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsMap()) {
    return value.IsNull() ? target.NotNeeded("empty: the rate is constant")
                          : target.Unsupported("expected a map of name and arguments");
  }
  const std::string name = TextOf(value["name"]);
  const YAML::Node arguments = value["arguments"];
  const bool is_cosine = name == "cosine_decay";
  const bool is_known = (is_cosine || name == "linear_schedule") && arguments &&
                        arguments.IsSequence() && arguments.size() >= 2;
  target.Part("lr_schedule.name", YAML::Node(name));
  if (!is_known) {
    return target.Unsupported("cosine_decay and linear_schedule are known; see lr_scheduler_type");
  }
  target.Carry("lr_scheduler_type", YAML::Node(is_cosine ? "cosine" : "linear"));
  target.Part("lr_schedule.arguments", arguments);
  target.Carry("learning_rate", arguments[0]);
  const YAML::Node last =
      is_cosine ? (arguments.size() > 2 ? arguments[2] : YAML::Node("0")) : arguments[1];
  if (!IsOff(last)) target.Carry("min_lr", last);
  const YAML::Node steps = is_cosine ? arguments[1] : (arguments.size() > 2 ? arguments[2] : last);
  if (TextOf(steps) != StepsOfRun(target)) {
    target.Unsupported("the rate falls until the last step of the run here, there for " +
                       TextOf(steps) + " steps");
  }
  const YAML::Node warmup = value["warmup"];
  const bool warms_up = warmup && !IsOff(warmup);
  if (warmup) {
    target.Part("lr_schedule.warmup", warmup);
    warms_up ? target.Carry("warmup_steps", warmup) : target.NotNeeded("there is no warm-up");
  }
  if (const YAML::Node init = value["warmup_init"]; init && !IsOff(init)) {
    target.Part("lr_schedule.warmup_init", init);
    warms_up ? target.Unsupported("the warm-up begins at 0")
             : target.NotNeeded("there is no warm-up");
  }
}

void MigrateMlxOptimizer(const YAML::Node& value, MigrationTarget& target) {
  const std::string name = LowerCase(TextOf(value));
  // Adam is AdamW without weight decay.
  target.Carry("optim", name == "adam" ? YAML::Node("adamw") : value);
}

void MigrateOptimizerConfig(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsMap()) return target.NotNeeded("empty: the default");
  const std::string theirs = LowerCase(target.Theirs("optimizer"));
  const std::string chosen = theirs.empty() ? "adam" : theirs;
  for (const auto& optimizer : value) {
    if (!optimizer.second.IsMap() || LowerCase(TextOf(optimizer.first)) != chosen) continue;
    for (const auto& entry : optimizer.second) {
      const std::string key = TextOf(entry.first);
      target.Part("optimizer_config." + TextOf(optimizer.first) + "." + key, entry.second);
      if (key == "weight_decay") {
        target.Carry("weight_decay", entry.second);
      } else if (key == "eps") {
        target.Carry("adam_epsilon", entry.second);
      } else if (key == "betas" && entry.second.IsSequence() && entry.second.size() == 2) {
        target.Carry("adam_beta1", entry.second[0]);
        target.Carry("adam_beta2", entry.second[1]);
      } else if (key == "bias_correction" && BoolText(entry.second) == "true") {
        target.NotNeeded(kBiasCorrection);
      } else if (key == "bias_correction") {
        target.Unsupported(kBiasCorrection);
      } else {
        target.Unsupported("optimizers have no such parameter here");
      }
    }
  }
}

void MigrateData(const YAML::Node& value, MigrationTarget& target) {
  if (TextOf(value).empty()) return target.Unsupported("expected a folder or a data set");
  target.AddDataset("dataset", value.Scalar());
}

constexpr KeyRule kMlxRules[] = {
    rule::Same("learning_rate seed use_dora"),
    rule::Copy("model_name_or_path", "model"),
    rule::Copy("per_device_train_batch_size", "batch_size"),
    rule::Copy("gradient_accumulation_steps", "grad_accumulation_steps"),
    rule::Custom(MigrateReportEvery, "steps_per_report"),
    rule::Custom(MigrateEvalEvery, "steps_per_eval"),
    rule::Custom(MigrateSaveEvery, "save_every"),
    rule::Copy("output_dir", "adapter_path"),
    rule::Copy("max_length", "max_seq_length"),
    rule::Copy("gradient_checkpointing", "grad_checkpoint"),
    rule::Custom(MigrateData, "data"),
    rule::Custom(MigrateIterations, "iters"),
    rule::Custom(MigrateLayers, "num_layers lora_layers"),
    rule::Custom(MigrateType, "fine_tune_type"),
    rule::Custom(MigrateParameters, "lora_parameters"),
    rule::Custom(MigrateSchedule, "lr_schedule"),
    rule::Custom(MigrateMlxOptimizer, "optimizer"),
    rule::Custom(MigrateOptimizerConfig, "optimizer_config"),
    rule::Custom(MigrateTrainOnPrompt, "mask_prompt"),
    rule::Expect("true", "the verb train trains", "train"),
    rule::Expect("normal", "preferences are trained on by preference_loss", "training_mode"),
    rule::Expect("prompt", kFieldNames, "prompt_feature"),
    rule::Expect("completion", kFieldNames, "completion_feature"),
    rule::Expect("text", kFieldNames, "text_feature"),
    rule::Expect("messages", kFieldNames, "chat_feature"),
    rule::NotNeeded("all evaluation data are evaluated", "val_batches"),
    rule::NotNeeded("`qlora eval` reads the whole file", "test_batches"),
    rule::NotNeeded("memory is planned and fixed", "clear_cache_threshold"),
    rule::Unsupported("use `qlora eval` on the file", "test"),
    rule::Unsupported("`qlora export --format peft-adapter` makes one that `--adapter` continues",
                      "resume_adapter_file"),
    rule::Unsupported(kNoHub, "report_to project_name wandb"),
    rule::Unsupported("data are files", "hf_dataset"),
};

constexpr auto kMlxDefaults = std::to_array<ForeignDefault>({
    {"load_in_4bit", "false"},
    {"output_dir", "adapters"},
    {"learning_rate", "1e-5"},
    {"lr_scheduler_type", "constant"},
    {"warmup_ratio", "0"},
    {"per_device_train_batch_size", "4"},
    {"gradient_accumulation_steps", "1"},
    {"max_length", "2048"},
    {"over_long", "truncate"},
    {"train_on_inputs", "true"},
    {"max_grad_norm", "0"},
    {"save_steps", "100"},
    {"lora_r", "8"},
});

constexpr auto kMlxMarks = std::to_array<std::string_view>(
    {"iters", "lora_parameters", "num_layers", "lora_layers", "adapter_path", "steps_per_report",
     "steps_per_eval", "val_batches", "test_batches", "save_every", "fine_tune_type",
     "resume_adapter_file", "grad_checkpoint", "lr_schedule", "mask_prompt"});

void Complete(MigrationTarget& target) {
  target.SetDefault("max_steps", StepsOfRun(target));
  if (LowerCase(target.Theirs("optimizer")) == "adamw") target.SetDefault("weight_decay", "0.01");
  if (target.ValueOf("lora_alpha").empty()) {
    double rank = kDefaultRank;
    YAML::convert<double>::decode(YAML::Node(target.ValueOf("lora_r")), rank);
    target.SetDefault("lora_alpha", fmt::format("{}", rank * kDefaultScale));
  }
  if (target.Theirs("num_layers").empty() && target.Theirs("lora_layers").empty()) {
    target.Part("num_layers", YAML::Node(std::string(kDefaultLayers)));
    LastLayers(kDefaultLayers, target);
  }
}

}  // namespace

const ForeignTrainer& MlxTrainer() {
  static const ForeignTrainer kTrainer = {
      .name = "mlx-lm",
      .from = "mlx-lm",
      .rules = kMlxRules,
      .more_rules = {},
      .defaults = kMlxDefaults,
      .marks = kMlxMarks,
      .complete = Complete,
      .folders_evaluate = true,
  };
  return kTrainer;
}

}  // namespace qlora
