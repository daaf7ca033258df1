// OpenAI: the JSON of a fine-tuning job (POST /v1/fine_tuning/jobs), supervised or by preferences.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/text.h"
#include "foreign/rules.h"
#include "qlora/train_options.h"

namespace qlora {
namespace {

// A number, or auto: the default.
void CarryNumber(const char* our_key, const YAML::Node& value, MigrationTarget& target) {
  if (LowerText(value) == "auto" || IsOff(value)) {
    target.NotNeeded("the default");
  } else {
    target.Carry(our_key, value);
  }
}

// Of the job, which may stand behind its hyperparameters.
std::string TypeOf(const YAML::Node& method) {
  return method.IsDefined() && method.IsMap() ? LowerText(method["type"]) : "";
}

// The hyperparameters of the method; undefined or null without them.
YAML::Node SettingsOf(const YAML::Node& method) {
  const std::string type = TypeOf(method);
  if (type.empty() || !method[type].IsDefined() || !method[type].IsMap()) return YAML::Node();
  return method[type]["hyperparameters"];
}

// As jobs of `serve` read them: the rate is a multiple of that which a run of the method has
// without one, and `first` goes before.
void MigrateHyperparameters(const std::string& where, const YAML::Node& map,
                            const YAML::Node& first, MigrationTarget& target) {
  const bool is_dpo = TypeOf(target.TheirValue("method")) == "dpo";
  const double usual_rate = is_dpo ? kUsualPreferenceRate : kUsualLearningRate;
  for (const auto& entry : map) {
    const std::string name = TextOf(entry.first);
    target.Part(where + "." + name, entry.second);
    const std::string chosen = first.IsDefined() && first.IsMap() ? LowerText(first[name]) : "";
    if (!chosen.empty() && chosen != "auto") {
      target.NotNeeded("the method has its own");
    } else if (name == "n_epochs") {
      CarryNumber("num_train_epochs", entry.second, target);
    } else if (name == "batch_size") {
      CarryNumber("global_batch_size", entry.second, target);
      // A step is whole micro-batches, of two samples unless something else is said.
      const auto samples = ParseNumber<std::int64_t>(TextOf(entry.second));
      if (samples && *samples % 2 != 0) {
        target.Carry("per_device_train_batch_size", YAML::Node("1"));
      }
    } else if (name == "beta") {
      CarryNumber("beta", entry.second, target);
    } else if (name == "learning_rate_multiplier") {
      const auto multiplier = ParseNumber<double>(TextOf(entry.second));
      CarryNumber(
          "learning_rate",
          multiplier ? YAML::Node(fmt::format("{}", *multiplier * usual_rate)) : entry.second,
          target);
    } else if (LowerText(entry.second) == "auto") {
      target.NotNeeded("the default");
    } else {
      target.Unsupported("no such hyperparameter of OpenAI is known");
    }
  }
}

// {"type": "dpo", "dpo": {"hyperparameters": {...}}}
void MigrateMethod(const YAML::Node& value, MigrationTarget& target) {
  const std::string type = TypeOf(value);
  if (type != "dpo" && type != "supervised") {
    return target.Unsupported("training is supervised fine-tuning or on preferences (dpo)");
  }
  target.Part("method.type", value["type"]);
  if (type == "dpo") {
    target.Carry("preference_loss", YAML::Node("sigmoid"));
  } else {
    target.NotNeeded("training is supervised fine-tuning");
  }
  const YAML::Node settings = SettingsOf(value);
  if (settings && settings.IsMap()) {
    MigrateHyperparameters("method." + type, settings, YAML::Node(), target);
  }
}

void MigrateTopHyperparameters(const YAML::Node& value, MigrationTarget& target) {
  if (!value.IsMap()) return target.Unsupported("expected a map");
  MigrateHyperparameters("hyperparameters", value, SettingsOf(target.TheirValue("method")), target);
}

void MigrateModel(const YAML::Node& /*value*/, MigrationTarget& target) {
  target.Unsupported("models there are not to be had; give one as model_name_or_path");
}

constexpr KeyRule kOpenAiRules[] = {
    rule::Custom(MigrateModel, "model"),
    rule::File("dataset", "training_file"),
    rule::File("eval_dataset", "validation_file"),
    rule::Custom(MigrateMethod, "method"),
    rule::Custom(MigrateTopHyperparameters, "hyperparameters"),
    rule::Same("seed"),
    rule::NotNeeded(kNoHub, "suffix user_provided_suffix integrations metadata"),
    // Of the body that answers for a job that there is.
    rule::NotNeeded("it says what became of a job, not how one trains",
                    "id object created_at finished_at fine_tuned_model organization_id status "
                    "trained_tokens error estimated_finish result_files"),
};

constexpr auto kOpenAiMarks = std::to_array<std::string_view>({"training_file"});

}  // namespace

const ForeignTrainer& OpenAiTrainer() {
  static const ForeignTrainer kTrainer = {
      .name = "OpenAI",
      .from = "openai",
      .rules = kOpenAiRules,
      .more_rules = {},
      .defaults = {},
      .marks = kOpenAiMarks,
      .complete = CompletePreferences,
  };
  return kTrainer;
}

}  // namespace qlora
