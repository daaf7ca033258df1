// How keys of other trainers are carried over: one table for each trainer.
//
// A table leads from their keys to ours, with the reason of every key that is left out: axolotl.cc,
// llama_factory.cc, trl.cc, mlx.cc, openai.cc, sysone.cc, transformers.cc. Layouts of prompts are
// in axolotl_layout.h, the data sets of LLaMA-Factory in dataset_info.h. `qlora migrate` applies
// them to whole files; foreign_option.h to single options on our command line, in YAML and in
// Python, with short flags and verbs of other programs from command_rules.cc.
#ifndef QLORA_FOREIGN_RULES_H_
#define QLORA_FOREIGN_RULES_H_

#include <yaml-cpp/yaml.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace qlora {

// Reasons that several trainers share.
inline constexpr std::string_view kNoHub = "nothing leaves this machine";
inline constexpr std::string_view kRanks =
    "mpirun or torchrun start ranks, which share out samples, or layers (pipeline_stages)";

inline constexpr std::string_view kNoFloat16 =
    "nothing is computed in float16, so losses need no scaling; compute_dtype takes float32, "
    "bfloat16 or int8";

inline constexpr std::string_view kOtherTemplate =
    "THE TEXT MAY DIFFER: the checkpoint's own chat template is used; for another, give a Jinja "
    "file as chat_template";

// The text of a value; "" for lists, maps and a key that is not there.
std::string TextOf(const YAML::Node& value);
// The same in lower case.
std::string LowerText(const YAML::Node& value);
// "true" or "false" for all spellings of YAML (yes, on, True ...), otherwise as LowerText.
std::string BoolText(const YAML::Node& value);
// A value as YAML on one line.
std::string OneLine(const YAML::Node& value);
// A key with underscores in place of dashes.
std::string Underscored(std::string_view key);
// True when the value says "nothing": empty, false, none, 0.
bool IsOff(const YAML::Node& value);
// A key or a value in lower case, without dashes and underscores.
std::string Squeezed(std::string_view key);

// The migration as a rule sees it.
class MigrationTarget {
 public:
  virtual ~MigrationTarget() = default;
  // At least one of these is called for each key. our_key: of several keys, separated by commas,
  // the first that exists is meant.
  virtual void Carry(const std::string& our_key, const YAML::Node& value) = 0;
  virtual void NotNeeded(std::string_view why) = 0;
  // The key was carried over together with another; `how` says where it went.
  virtual void Done(std::string_view how) = 0;
  virtual void Unsupported(std::string_view why) = 0;
  // Adds a file to `dataset` or `eval_dataset`.
  virtual void AddDataset(const std::string& our_key, const std::string& path) = 0;
  // Starts a part of the key ("datasets[0].split"), which is accounted for separately.
  virtual void Part(const std::string& name, const YAML::Node& value) = 0;
  // True when there is such an option of ours: verbs have different ones.
  virtual bool Has(const std::string& our_key) const = 0;
  // The value of another key of the file; undefined where the file has no such key.
  virtual YAML::Node TheirValue(const std::string& key) const = 0;
  std::string Theirs(const std::string& key) const { return TextOf(TheirValue(key)); }
  // Our value so far (OneLine of it; "": none), and one that the other trainer would have had by
  // default.
  virtual std::string ValueOf(const std::string& our_key) const = 0;
  virtual void SetDefault(const std::string& our_key, const std::string& value) = 0;
  // Leaves our key at its default, also where another key sets it, and says why to both.
  virtual void LeaveAtDefault(const std::string& our_key, std::string_view why) = 0;
  virtual bool IsLeftAtDefault(const std::string& our_key) const = 0;
};

enum class RuleKind {
  kCopy,         // text: our key, or keys separated by commas, for the same value; "": the same key
  kFile,         // text: dataset or eval_dataset, for the name of one file
  kSteps,        // the same key; text: our key for a share of the run, "": unsupported
  kExpect,       // text: values, comma-separated, that name our only behaviour; others: unsupported
  kNotNeeded,    // whatever its value
  kUnsupported,  // unless its value switches it off
  kCustom,
};

using CustomRule = void (*)(const YAML::Node& value, MigrationTarget& target);

// The rule for some keys of another trainer.
struct KeyRule {
  RuleKind kind;
  std::string_view keys;  // theirs, separated by spaces
  std::string_view text = {};
  std::string_view why = {};
  CustomRule custom = nullptr;
};

// One function for each kind of rule. Arguments: the action, then the keys of the other trainer.
namespace rule {

constexpr KeyRule Same(std::string_view keys) { return {RuleKind::kCopy, keys}; }
constexpr KeyRule Copy(std::string_view our_keys, std::string_view keys) {
  return {RuleKind::kCopy, keys, our_keys};
}
constexpr KeyRule File(std::string_view our_key, std::string_view keys) {
  return {RuleKind::kFile, keys, our_key};
}
constexpr KeyRule Steps(std::string_view our_share, std::string_view keys) {
  return {RuleKind::kSteps, keys, our_share};
}
constexpr KeyRule Expect(std::string_view values, std::string_view why, std::string_view keys) {
  return {RuleKind::kExpect, keys, values, why};
}
constexpr KeyRule NotNeeded(std::string_view why, std::string_view keys) {
  return {RuleKind::kNotNeeded, keys, {}, why};
}
constexpr KeyRule Unsupported(std::string_view why, std::string_view keys) {
  return {RuleKind::kUnsupported, keys, {}, why};
}
constexpr KeyRule Custom(CustomRule custom, std::string_view keys) {
  return {RuleKind::kCustom, keys, {}, {}, custom};
}

}  // namespace rule

// A default of the trainer that is not ours.
struct ForeignDefault {
  std::string_view our_key;
  std::string_view value;
  // Of a Python class whose arguments the file holds as a map: the class, and the package that it
  // is of. "": of the trainer itself.
  std::string_view class_name = {};
  std::string_view package = {};
};

struct ForeignTrainer {
  std::string_view name;  // "Axolotl"
  std::string_view from;  // "axolotl"
  std::span<const KeyRule> rules;
  std::span<const KeyRule> more_rules;  // looked up second
  std::span<const ForeignDefault> defaults;
  std::span<const std::string_view> marks;       // keys and classes that only this trainer has
  void (*complete)(MigrationTarget&) = nullptr;  // defaults that depend on other keys
  bool folders_evaluate = false;                 // a folder of data must hold data for evaluation
};

// The first rule for the key; nullptr when no table has one.
const KeyRule* FindRule(std::initializer_list<std::span<const KeyRule>> tables,
                        std::string_view key);
// Makes the calls of `target` that the rule asks for with `value` of `key`.
void ApplyRule(const KeyRule& rule, std::string_view key, const YAML::Node& value,
               MigrationTarget& target);

const ForeignTrainer& AxolotlTrainer();
const ForeignTrainer& LlamaFactoryTrainer();
const ForeignTrainer& TrlTrainer();
const ForeignTrainer& MlxTrainer();
const ForeignTrainer& OpenAiTrainer();
const ForeignTrainer& SysoneTrainer();

// Keys of transformers' TrainingArguments, PEFT's LoraConfig and BitsAndBytesConfig.
std::span<const KeyRule> TransformersRules();
// Keys of training on preferences.
std::span<const KeyRule> PreferenceRules();
// Short flags and options of other command lines, which `migrate` does not meet.
std::span<const KeyRule> CommandRules();

// A value of gradient_checkpointing that is neither true nor false.
bool IsCheckpointingWord(std::string_view text);

// None, in the ways in which Python files, YAML and command lines write it.
bool IsNone(const YAML::Node& value);

// Rules that several trainers, or the command line, share.
void MigrateCheckpointing(const YAML::Node& value, MigrationTarget& target);
void MigrateBf16(const YAML::Node& value, MigrationTarget& target);
void MigrateFp16(const YAML::Node& value, MigrationTarget& target);
// The type in which weights are read: that of products, too, unless another key says theirs.
void MigrateLoadType(const YAML::Node& value, MigrationTarget& target);
void MigrateWarmup(const YAML::Node& value, MigrationTarget& target);
void MigrateTrainOnPrompt(const YAML::Node& value, MigrationTarget& target);
void MigrateOptimizer(const YAML::Node& value, MigrationTarget& target);
// chat_template_kwargs with enable_thinking; a flag on command lines.
void MigrateThinking(const YAML::Node& value, MigrationTarget& target);
// Errors: InvalidInput for a method of training by rewards, of which nothing can be carried over.
void RefuseRewards(std::string_view key, const YAML::Node& value);
// The error of such a method, which `key` names as `found`.
[[noreturn]] void RefuseRewardTraining(std::string_view key, std::string_view found);
// Rules of preference_rules.cc: loss_type, and dpo, kto ... as a method of training.
void MigrateLossType(const YAML::Node& value, MigrationTarget& target);
void MigratePreferenceMethod(const YAML::Node& value, MigrationTarget& target);
void MigrateReferenceFree(const YAML::Node& value, MigrationTarget& target);
// Sets what other trainers have by default, where preferences are trained on.
void CompletePreferences(MigrationTarget& target);

}  // namespace qlora

#endif  // QLORA_FOREIGN_RULES_H_
