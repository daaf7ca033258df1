#include "foreign/foreign_option.h"

#include <array>

#include "base/check.h"
#include "base/text.h"
#include "foreign/rules.h"
#include "qlora/train_options.h"

namespace qlora {
namespace {

// The first rule for `key`: of command lines, then of the trainers whose names are most common.
const KeyRule* FindForeignRule(std::string_view key) {
  // One name may mean different things in two trainers: the first table that knows it decides.
  return FindRule({CommandRules(), TrlTrainer().rules, PreferenceRules(), TransformersRules(),
                   AxolotlTrainer().rules, LlamaFactoryTrainer().rules, MlxTrainer().rules},
                  Underscored(key));
}

// Collects the values that one option sets in the table of a verb.
class CommandTarget : public MigrationTarget {
 public:
  CommandTarget(OptionTable& table, std::string_view key, const YAML::Node& value,
                std::string_view origin)
      : table_(table), key_(key), value_(value), origin_(origin) {}

  void Carry(const std::string& our_keys, const YAML::Node& value) override {
    // Verbs have different options: --output of one is --output_dir of another.
    const std::string key = FirstKnown(our_keys);
    if (key.empty()) ThrowAbsent(our_keys.substr(0, our_keys.find(',')));
    if (!value.IsNull()) {
      found_.settings.emplace_back(key, value);
    } else {
      found_.notes.push_back(fmt::format("{}: empty, so {} keeps its default", origin_, key));
    }
  }
  void NotNeeded(std::string_view why) override {
    found_.notes.push_back(why.empty() ? fmt::format("{} has no effect", origin_)
                                       : fmt::format("{} is not needed: {}", origin_, why));
  }
  // What it went along with says it.
  void Done(std::string_view /*how*/) override {}
  void Unsupported(std::string_view why) override {
    if (table_.Find(key_) != nullptr) {
      ThrowInvalidInput("{}: {} is not supported: {}", origin_, TextOf(value_), why);
    }
    // On a command line, an option that does nothing is an error; in a file of `migrate`, a line of
    // the list. An option that another verb has is not one of another program.
    if (const std::string key = Underscored(key_); IsTrainingOption(key)) ThrowAbsent(key);
    ThrowInvalidInput("{}: not an option of qlora: {}", origin_, why);
  }
  void AddDataset(const std::string& our_key, const std::string& path) override {
    // A second file of the same option joins the list of the first.
    const bool more = !found_.settings.empty() && found_.settings.back().first == our_key;
    if (!more) Carry(our_key, YAML::Node(YAML::NodeType::Sequence));
    found_.settings.back().second.push_back(path);
  }
  // An option has no parts, no values before it and no defaults.
  void Part(const std::string& /*name*/, const YAML::Node& /*value*/) override {}
  bool Has(const std::string& our_key) const override { return table_.Find(our_key) != nullptr; }
  YAML::Node TheirValue(const std::string& /*key*/) const override {
    return YAML::Node(YAML::NodeType::Undefined);
  }
  std::string ValueOf(const std::string& /*our_key*/) const override { return ""; }
  void SetDefault(const std::string& /*our_key*/, const std::string& /*value*/) override {}
  void LeaveAtDefault(const std::string& /*our_key*/, std::string_view why) override {
    NotNeeded(why);
  }
  bool IsLeftAtDefault(const std::string& /*our_key*/) const override { return false; }

  ForeignOption found() && { return std::move(found_); }

 private:
  // our_key: the name that the option has where a verb has it.
  [[noreturn]] void ThrowAbsent(const std::string& our_key) const {
    const bool is_of_training = IsTrainingOption(our_key);
    if (our_key == "max_length" && Has("max_new_tokens")) {
      ThrowInvalidInput(
          "{}: counts the prompt and the answer together, and is no option here; write "
          "--max_new_tokens, the length of the answer",
          origin_);
    }
    if (our_key == Underscored(key_)) {
      ThrowInvalidInput("{}: this verb has no such option{}", origin_,
                        is_of_training ? "; `qlora train` has it" : "");
    }
    ThrowInvalidInput("{}: this verb has no such option; it is {} {}", origin_, our_key,
                      is_of_training ? "of `qlora train`" : "where a verb has it");
  }

  std::string FirstKnown(std::string_view keys) const {
    for (const std::string_view key : Words(keys, ',')) {
      if (const Option* option = table_.Find(std::string(key))) return option->name;
    }
    return "";
  }

  OptionTable& table_;
  std::string_view key_;
  const YAML::Node& value_;
  std::string_view origin_;
  ForeignOption found_;
};

struct ForeignVerb {
  std::string_view names;  // separated by spaces
  std::string_view advice;
};

// Verbs that users of other programs type, each with the command that does the same here.
constexpr auto kForeignVerbs = std::to_array<ForeignVerb>({
    {"run", "write `qlora chat MODEL` to talk to a model, or `qlora train` to train one"},
    {"list ls ps", "there is no list: models are folders, or names in the Hugging Face cache"},
    {"finetune fine-tune fine_tune sft lora qlora fit tune",
     "write `qlora train --model MODEL --dataset FILE --output_dir ADAPTER`"},
    {"continue", "write `qlora resume OUTPUT_DIR`"},
    {"merge fuse merge-lora merge_lora merge_and_unload",
     "write `qlora export MODEL MERGED --format hf --adapter ADAPTER`"},
    {"convert gguf to-gguf save", "write `qlora export MODEL OUT.gguf --adapter ADAPTER`"},
    {"perplexity ppl evaluate test lm_eval lm-eval",
     "write `qlora eval MODEL FILE --adapter ADAPTER`"},
    {"infer inference predict complete cli",
     "write `qlora generate MODEL \"PROMPT\" --adapter ADAPTER`"},
    {"preprocess prepare show-data data",
     "write `qlora inspect --dataset FILE --model MODEL`, which shows what is trained on"},
    {"server api openai", "write `qlora serve MODEL --adapter NAME=ADAPTER`"},
    {"download fetch", "write `qlora pull ORG/NAME`, then give ORG/NAME as the model"},
    {"login", "no login is needed: `qlora pull` reads the token from HF_TOKEN"},
    {"push upload", "nothing leaves this machine: run `hf upload` on the folder"},
    {"webui board studio dashboard ui",
     "write `qlora train ... --dashboard PORT`, or `qlora report RUN`"},
    {"env info", "write `qlora doctor`"},
    {"check lint dry-run", "write `qlora validate run.yaml`"},
    {"bench benchmark",
     "measurements are a program of their own, which a build with tests has: write `qlora-bench`"},
    {"estimate memory", "write `qlora plan run.yaml`"},
    {"schema", "write `qlora config-schema`"},
    {"import", "write `qlora migrate FILE --out run.yaml`"},
    {"dpo rlhf", "write `qlora train --preference-loss sigmoid`"},
    {"kto", "write `qlora train --preference-loss kto`"},
    {"orpo", "write `qlora train --preference-loss orpo`"},
    {"grpo ppo reward pretrain rm", "training is supervised fine-tuning: `qlora train`"},
});

// The option of ours that a rule copies the value of `key` to; null for other rules.
const Option* CopiedOption(OptionTable& table, std::string_view key) {
  const KeyRule& rule = *FindForeignRule(key);
  if (rule.kind != RuleKind::kCopy) return nullptr;
  const std::string_view ours = rule.text.empty() ? key : rule.text;
  return table.Find(ours.substr(0, ours.find(',')));
}

}  // namespace

bool IsTrainingOption(const std::string& name) {
  TrainOptions options;
  OptionTable training;
  options.Declare(training);
  const Option* option = training.Find(name);
  return option != nullptr && option->name == name;
}

bool IsForeignOption(std::string_view key) { return FindForeignRule(key) != nullptr; }

bool CopiesText(OptionTable& table, std::string_view key) {
  const Option* option = CopiedOption(table, key);
  return option != nullptr && std::holds_alternative<std::string*>(option->value);
}

bool IsForeignValue(OptionTable& table, std::string_view key, const std::string& value) {
  const Option* option = table.Find(key);
  if (option == nullptr) return false;
  const KeyRule* rule = FindForeignRule(key);
  // None is a value of Python, which means something else for each key; a text takes it as a word.
  if (rule != nullptr && IsNone(YAML::Node(value))) return true;
  if (option->Takes(value)) return false;
  // Other kinds of rules are about the key, whatever its value.
  return rule != nullptr && (rule->kind == RuleKind::kCustom || rule->kind == RuleKind::kSteps);
}

bool IsForeignFlagValue(std::string_view key, std::string_view word) {
  const KeyRule* rule = FindForeignRule(key);
  return rule != nullptr && rule->custom == MigrateCheckpointing && IsCheckpointingWord(word);
}

bool TakesValue(OptionTable& table, std::string_view key, const std::string& word,
                bool takes_words) {
  const KeyRule& rule = *FindForeignRule(key);
  const bool is_bool = ParseBool(word).has_value();
  const bool is_like_bool = IsLikeBool(word);
  switch (rule.kind) {
    case RuleKind::kCopy: {
      const Option* option = CopiedOption(table, key);
      // A flag takes the next word only if it is true or false.
      return is_like_bool || option == nullptr || !std::holds_alternative<bool*>(option->value);
    }
    case RuleKind::kExpect:
      return is_like_bool || rule.text != "true";
    case RuleKind::kCustom:
      return is_like_bool || IsNone(YAML::Node(word)) ||
             !(rule.custom == MigrateFp16 || rule.custom == MigrateTrainOnPrompt ||
               rule.custom == MigrateThinking ||
               (rule.custom == MigrateBf16 && word != "auto" && word != "full"));
    case RuleKind::kFile:
    case RuleKind::kSteps:
      return true;
    case RuleKind::kNotNeeded:
    case RuleKind::kUnsupported:
      // An unknown switch may have a value: a number or a truth value is taken as one, another word
      // only where the verb has no use for it.
      return is_bool || !takes_words ||
             word.find_first_not_of("0123456789.eE+-") == std::string::npos;
  }
  return true;
}

ForeignOption TranslateOption(OptionTable& table, std::string_view key, const YAML::Node& value,
                              std::string_view origin) {
  CommandTarget target(table, key, value, origin);
  const KeyRule& rule = *FindForeignRule(key);
  ApplyRule(rule, Underscored(key), value, target);
  ForeignOption found = std::move(target).found();
  found.yields = rule.custom == MigrateLoadType;
  return found;
}

std::string YieldNote(std::string_view yielded, std::string_view other, std::string_view our_key) {
  return fmt::format("{} has no effect: {} sets {}", yielded, other, our_key);
}

std::string VerbAdvice(std::string_view verb) {
  for (const ForeignVerb& foreign : kForeignVerbs) {
    if (HasWord(foreign.names, verb)) return std::string(foreign.advice);
  }
  return "";
}

}  // namespace qlora
