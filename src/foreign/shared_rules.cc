// Rules that several trainers, or the command line, share.
#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/text.h"
#include "foreign/rules.h"
#include "qlora/options.h"

namespace qlora {

bool IsCheckpointingWord(std::string_view text) {
  return text == "unsloth" || text == "offload" || text == "offload_disk";
}

void MigrateCheckpointing(const YAML::Node& value, MigrationTarget& target) {
  // Unsloth's and Axolotl's words all mean that activations are recomputed.
  const bool is_word = IsCheckpointingWord(TextOf(value));
  target.Carry("gradient_checkpointing", is_word ? YAML::Node("true") : value);
}

namespace {

// false, and auto, say nothing: another key may name the type.
void MigrateNoType(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = BoolText(value);
  if (value.IsNull() || text.empty() || text == "false" || text == "auto") {
    target.NotNeeded("compute_dtype says what products are computed in");
  } else {
    target.Unsupported(fmt::format("expected true, false or auto, found '{}'", OneLine(value)));
  }
}

}  // namespace

void MigrateBf16(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = BoolText(value);
  if (text == "true" || text == "full") {
    target.Carry("compute_dtype", YAML::Node("bfloat16"));
  } else {
    MigrateNoType(value, target);
  }
}

void MigrateFp16(const YAML::Node& value, MigrationTarget& target) {
  if (BoolText(value) == "true") {
    target.Unsupported(kNoFloat16);
  } else {
    MigrateNoType(value, target);
  }
}

void MigrateThinking(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  const std::optional<bool> thinks = ParseBool(text);
  if (value.IsNull()) {
    target.Unsupported(
        "null masks empty thoughts and keeps those of the data; write enable_thinking: true or "
        "false");
  } else if (!thinks) {
    target.Unsupported("expected true or false");
  } else {
    target.Carry("chat_template_kwargs", YAML::Node(*thinks ? R"({"enable_thinking": true})"
                                                            : R"({"enable_thinking": false})"));
  }
}

void RefuseRewards(std::string_view key, const YAML::Node& value) {
  constexpr std::string_view kMethods = "bco grpo gspo ppo rloo rm reward prm online_dpo";
  const std::string method = LowerText(value);
  if (HasWord(kMethods, method)) RefuseRewardTraining(key, method);
}

void RefuseRewardTraining(std::string_view key, std::string_view found) {
  ThrowInvalidInput(
      "{}: {} is training by rewards; qlora trains on examples and on preferences (dpo, ipo, orpo, "
      "simpo, cpo, kto)",
      key, found);
}

// transformers 5 takes a share of the run as warmup_steps, too.
void MigrateWarmup(const YAML::Node& value, MigrationTarget& target) {
  double number = 0;
  const bool is_number = YAML::convert<double>::decode(value, number);
  const bool is_share = is_number && number > 0 && number < 1;
  if (is_number && number <= 0) return target.NotNeeded("warmup_ratio says how long");
  target.Carry(is_share ? "warmup_ratio" : "warmup_steps", value);
}

void MigrateTrainOnPrompt(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = BoolText(value);
  if (text.empty()) return target.NotNeeded("prompts are masked where there are completions");
  // The opposite question: completion_only_loss: true masks the prompts.
  const std::optional<bool> masks = ParseBool(text);
  target.Carry("train_on_inputs", masks ? YAML::Node(*masks ? "false" : "true") : value);
}

void MigrateOptimizer(const YAML::Node& value, MigrationTarget& target) {
  const std::string text = LowerText(value);
  // One algorithm in several implementations; values with our own names are carried as they are.
  const bool is_adamw = text == "adamw_hf" || text == "adamw_apex_fused" ||
                        text == "adamw_torch_xla" || text == "adamw_torch_npu_fused";
  target.Carry("optim", is_adamw ? YAML::Node("adamw") : value);
}

}  // namespace qlora
