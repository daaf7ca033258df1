// sysone: a library of Python, of which people write down the arguments of its models
// (DecoderModel) and of their method fit. Its records are read as they are.
#include <array>
#include <string>

#include "foreign/rules.h"

namespace qlora {
namespace {

// What of the model is trained: its head alone, or a LoRA adapter, on a base in 4 bits or as it is.
void MigrateTuning(const YAML::Node& value, MigrationTarget& target) {
  const std::string tuning = LowerText(value);
  if (tuning == "qlora" || tuning == "lora") {
    target.Carry("load_in_4bit", YAML::Node(tuning == "qlora" ? "true" : "false"));
  } else if (tuning == "head") {
    target.Unsupported(
        "answers are letters of the model's own vocabulary, without a head to train; an adapter is "
        "trained");
  } else {
    target.Unsupported("adapters are trained, not the model");
  }
}

constexpr KeyRule kSysoneRules[] = {
    rule::Custom(MigrateTuning, "tuning"),
    rule::Copy("model_name_or_path", "model model_name base_model"),
    rule::Same("epochs lr batch_size max_length val_size calibration_size"),
    rule::Copy("lora_r", "lora_rank rank"),
    rule::Copy("early_stopping_patience", "patience"),
    rule::NotNeeded("answers are letters of the model's own vocabulary, without a head",
                    "head_lr head_learning_rate"),
    rule::Unsupported("encoders such as ModernBERT are not trained; take a decoder such as Qwen3",
                      "EncoderModel encoder_model"),
    rule::Unsupported("write the rows to a file, a JSON object with state, questions and expected "
                      "on each line, and give it as dataset",
                      "rows questions"),
    rule::Unsupported("set calibration_dataset or calibration_size, or run `qlora calibrate`",
                      "calibrate"),
};

constexpr auto kSysoneMarks = std::to_array<std::string_view>({"tuning", "EncoderModel"});

}  // namespace

const ForeignTrainer& SysoneTrainer() {
  static const ForeignTrainer kTrainer = {
      .name = "sysone",
      .from = "sysone",
      .rules = kSysoneRules,
      .more_rules = TransformersRules(),
      .defaults = {},
      .marks = kSysoneMarks,
  };
  return kTrainer;
}

}  // namespace qlora
