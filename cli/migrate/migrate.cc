#include "migrate/migrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.h"
#include "base/printable.h"
#include "data/data_options.h"
#include "foreign/rules.h"
#include "foreign/yaml_options.h"
#include "plan/check_options.h"
#include "records/yaml_text.h"
#include "training/train_settings.h"

namespace qlora {

namespace {

const std::array<const ForeignTrainer*, 6>& Trainers() {
  static const std::array<const ForeignTrainer*, 6> kTrainers = {
      &AxolotlTrainer(), &LlamaFactoryTrainer(), &TrlTrainer(),
      &MlxTrainer(),     &OpenAiTrainer(),       &SysoneTrainer()};
  return kTrainers;
}

// Python classes whose arguments a file may hold as maps, in lower case without underscores.
// Scripts keep the arguments of each class in a separate map; keys inside are looked up as if they
// were at the top.
struct Section {
  std::string_view name;
  std::string_view class_name = {};  // where its defaults differ from the trainer's
};
constexpr auto kSections = std::to_array<Section>({
    {"sftconfig"},
    {"sftargs"},
    {"dpoconfig", "DPOConfig"},
    {"dpoargs", "DPOConfig"},
    {"ktoconfig", "KTOConfig"},
    {"orpoconfig", "ORPOConfig"},
    {"cpoconfig", "CPOConfig"},
    {"decisiontrainer"},
    {"fastdecisionmodel"},
    {"decodermodel", "DecoderModel"},
    {"fit"},
    {"trainingarguments"},
    {"trainingargs"},
    {"trainer"},
    {"loraconfig", "LoraConfig"},
    {"peftconfig", "LoraConfig"},
    {"peft", "LoraConfig"},
    {"lora", "LoraConfig"},
    {"bitsandbytesconfig", "BitsAndBytesConfig"},
    {"quantizationconfig", "BitsAndBytesConfig"},
    {"quantization", "BitsAndBytesConfig"},
    {"modelconfig"},
    {"modelargs"},
    {"scriptarguments"},
    {"scriptargs"},
});

// Null for a key that is not a section.
const Section* FindSection(const std::string& key, const YAML::Node& value) {
  if (!value.IsMap()) return nullptr;
  for (const Section& section : kSections) {
    // Squeezed: SFTConfig, sft_config and sft-config are one.
    if (section.name == Squeezed(key)) return &section;
  }
  return nullptr;
}

// Every key with its value; sections are opened, and their classes collected.
using Entries = std::vector<std::pair<std::string, YAML::Node>>;
using Classes = std::set<std::string_view>;
void Flatten(const YAML::Node& map, Entries& entries, Classes& classes) {
  for (const auto& entry : map) {
    // A key that is a list has no name; it is listed as not known.
    const std::string key = Underscored(entry.first.IsScalar() ? entry.first.Scalar() : "?");
    if (const Section* section = FindSection(key, entry.second)) {
      classes.insert(section->class_name);
      Flatten(entry.second, entries, classes);
    } else {
      entries.emplace_back(key, entry.second);
    }
  }
}

class Migrator : public MigrationTarget {
 public:
  // entries: of the file.
  Migrator(const ForeignTrainer& trainer, const Entries& entries)
      : trainer_(trainer), entries_(entries) {
    settings_.Declare(table_);
  }

  void Key(const std::string& key, const YAML::Node& value) {
    entry_ = {key, OneLine(value), Fate::kNotNeeded, ""};
    const std::string why = fmt::format("not a key of {} that qlora knows", trainer_.name);
    // A key that no table knows is not supported, even if an option of ours has the same name: the
    // meanings may differ.
    const KeyRule* known = FindRule({trainer_.rules, PreferenceRules(), trainer_.more_rules}, key);
    ApplyRule(known != nullptr ? *known : rule::Unsupported(why, key), key, value, *this);
    Account();
  }

  void Part(const std::string& name, const YAML::Node& value) override {
    Account();
    entry_ = {name, OneLine(value), Fate::kNotNeeded, ""};
  }

  void Carry(const std::string& our_key, const YAML::Node& value) override {
    if (value.IsNull()) return NotNeeded("empty: the default");
    const Option* option = table_.Find(our_key);
    if (option == nullptr) return Unsupported("qlora has no such option");
    if (const auto left = left_.find(option->name); left != left_.end()) {
      return NotNeeded(left->second);
    }
    // Two of their keys may mean one of ours.
    if (option->set) {
      if (values_.at(option->name) != OneLine(value)) {
        Unsupported(fmt::format("{} is already {}", option->name, values_.at(option->name)));
      } else {
        Say(Fate::kCarried, fmt::format("{}: {}", option->name, OneLine(value)));
      }
      return;
    }
    const std::string before = option->ToString();
    try {
      // The checks of the option itself: a choice that does not exist here is not supported.
      SetFromNode(table_, our_key, value, entry_.key);
    } catch (const Error& error) {
      return Unsupported(error.what());
    }
    try {
      CheckRanges(settings_.options);
    } catch (const Error& error) {
      table_.Set(option->name, before, entry_.key);
      table_.Find(our_key)->set = false;
      return Unsupported(error.what());
    }
    values_[option->name] = OneLine(value);
    Say(Fate::kCarried, fmt::format("{}: {}", option->name, OneLine(value)));
  }

  void NotNeeded(std::string_view why) override { Say(Fate::kNotNeeded, why); }
  void Done(std::string_view how) override { Say(Fate::kCarried, how); }
  void Unsupported(std::string_view why) override { Say(Fate::kUnsupported, why); }

  void AddDataset(const std::string& our_key, const std::string& path) override {
    std::vector<std::string>& paths = our_key == "dataset" ? datasets_ : eval_datasets_;
    // Files of several keys become one list of ours.
    paths.push_back(path);
    table_.Set(our_key, paths, entry_.key);
    values_[our_key] = OneLine(YAML::Node(paths));
    Say(Fate::kCarried, fmt::format("{}: {}", our_key, path));
  }

  bool Has(const std::string& our_key) const override {
    const auto& options = table_.options();
    return std::any_of(options.begin(), options.end(),
                       [&](const Option& option) { return option.name == our_key; });
  }
  YAML::Node TheirValue(const std::string& key) const override {
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const auto& known) { return known.first == key; });
    return entry == entries_.end() ? YAML::Node(YAML::NodeType::Undefined) : entry->second;
  }
  std::string ValueOf(const std::string& our_key) const override {
    const auto value = values_.find(our_key);
    return value == values_.end() ? "" : value->second;
  }
  void SetDefault(const std::string& our_key, const std::string& value) override {
    SetDefaultOf(trainer_.name, our_key, value);
  }

  void SetDefaultOf(std::string_view source, const std::string& our_key, const std::string& value) {
    const Option* option = table_.Find(our_key);
    // Only where the file says nothing: the other trainer would have used its default.
    if (option == nullptr || option->set || left_.contains(our_key)) return;
    // Of the ways to say how often, one is given.
    const bool saves_otherwise =
        values_.contains("save_ratio") || values_.contains("saves_per_epoch");
    if (our_key == "save_steps" && saves_otherwise) return;
    table_.Set(our_key, value, source);
    // Marked in the file, so that the user sees which keys came from the other trainer's defaults.
    defaults_[our_key] = source;
    values_[our_key] = value;
  }

  void LeaveAtDefault(const std::string& our_key, std::string_view why) override {
    LeaveOut(our_key, std::string(why));
    left_.emplace(our_key, why);
    NotNeeded(why);
  }
  bool IsLeftAtDefault(const std::string& our_key) const override {
    return left_.contains(our_key);
  }

  // classes: of the maps in the file, whose defaults go before the trainer's.
  Migration Finish(const std::string& file, const Classes& classes) {
    for (const ForeignDefault& theirs : trainer_.defaults) {
      if (!theirs.class_name.empty() && !classes.contains(theirs.class_name)) continue;
      SetDefaultOf(theirs.package.empty() ? trainer_.name : theirs.package,
                   std::string(theirs.our_key), std::string(theirs.value));
    }
    // Defaults that depend on other keys, hence after all keys and plain defaults.
    if (trainer_.complete != nullptr) trainer_.complete(*this);
    Account();
    // Options that have no effect together with others, which `train` would refuse.
    TrainOptions found = settings_.options;
    try {
      found.data = WithFoundEvaluation(found.data);
    } catch (const Error&) {
      // The data are on another machine.
    }
    const auto is_here = [](const std::string& path) {
      std::error_code ignored;
      return std::filesystem::exists(path, ignored);
    };
    if (trainer_.folders_evaluate && !std::ranges::all_of(found.data.dataset, is_here)) {
      found.data.eval_dataset = found.data.dataset;
    }
    for (const IdleOption& idle : found.Idle()) {
      LeaveOut(idle.name, fmt::format("{} would have no effect: {}", idle.name, idle.reason));
    }
    return {std::string(trainer_.name), Yaml(file), keys_};
  }

 private:
  // Takes back the values that keys so far have set. `train` refuses options without effect.
  void LeaveOut(const std::string& our_key, const std::string& why) {
    Option& option = *table_.Find(our_key);
    if (!option.set) return;
    const std::string said = fmt::format("{}: {}", our_key, values_.at(our_key));
    // Remarks about the key that was taken back would contradict the written file.
    for (MigratedKey& key : keys_) {
      if (key.text == said) key.fate = Fate::kNotNeeded;
      if (const std::size_t at = key.text.find(said); at != std::string::npos) {
        key.text.replace(at, said.size(), why);
      }
    }
    TrainSettings untouched;
    OptionTable defaults;
    untouched.Declare(defaults);
    table_.Set(our_key, defaults.Find(our_key)->ToString(), our_key);
    option.set = false;
    values_.erase(our_key);
  }

  void Account() {
    if (!entry_.text.empty()) keys_.push_back(entry_);
    entry_ = {};
  }

  // Adds a remark about a key; the worst fate of several parts stays.
  void Say(Fate fate, std::string_view text) {
    if (!entry_.text.empty()) entry_.text += "; ";
    entry_.text += text;
    entry_.fate = std::max(entry_.fate, fate, [](Fate a, Fate b) {
      const auto weight = [](Fate f) {
        // "Not supported" must not be hidden by a part that was carried over.
        return f == Fate::kNotNeeded ? 0 : f == Fate::kCarried ? 1 : 2;
      };
      return weight(a) < weight(b);
    });
  }

  std::string Yaml(const std::string& file) const {
    std::string out =
        fmt::format("# Translated from {} ({}) by `qlora migrate`.\n", file, trainer_.name);
    for (const Option& option : table_.options()) {
      if (!option.set) continue;
      const auto filled = defaults_.find(option.name);
      out += fmt::format(
          "{}: {}{}\n", option.name, values_.at(option.name),
          filled == defaults_.end() ? "" : fmt::format("  # the default of {}", filled->second));
    }
    // Without these two the file is not a run yet; the user sees what to add.
    for (const char* key : {"model_name_or_path", "dataset"}) {
      if (values_.count(key) == 0) {
        out += fmt::format("# {}: to be filled in\n", key);
      }
    }
    const auto comments = [&](Fate fate, std::string_view title) {
      std::string lines;
      for (const MigratedKey& key : keys_) {
        if (key.fate != fate) continue;
        // A key or a message of several lines stays one comment.
        std::string line = Printable(fmt::format("{}: {}  ({})", key.key, key.value, key.text));
        std::replace(line.begin(), line.end(), '\n', ' ');
        lines += fmt::format("#   {}\n", line);
      }
      if (!lines.empty()) out += fmt::format("\n# {}\n{}", title, lines);
    };
    comments(Fate::kUnsupported, "Not supported, left out:");
    comments(Fate::kNotNeeded, "Not needed:");
    return out;
  }

  const ForeignTrainer& trainer_;
  const Entries& entries_;
  TrainSettings settings_;
  OptionTable table_;
  std::map<std::string, std::string> values_;  // of our keys, as YAML on one line
  std::map<std::string, std::string> left_;    // our keys that keep their defaults, and why
  std::vector<std::string> datasets_;
  std::vector<std::string> eval_datasets_;
  std::map<std::string, std::string_view> defaults_;  // of our keys: whose default the value is
  std::vector<MigratedKey> keys_;
  MigratedKey entry_;
};

// All keys are ours, and the data have the name that they have here alone.
bool IsOurs(const Entries& entries) {
  TrainSettings settings;
  OptionTable table;
  settings.Declare(table);
  bool data = false;
  for (const auto& [key, value] : entries) {
    const Option* option = table.Find(key);
    if (option == nullptr || option->name != key) return false;
    data |= key == "dataset";
  }
  return data;
}

const ForeignTrainer& Recognise(const Entries& entries, const Classes& classes,
                                const std::string& file) {
  if (IsOurs(entries)) {
    ThrowInvalidInput("{} is a configuration of qlora already; `qlora validate` checks it", file);
  }
  const ForeignTrainer* best = nullptr;
  std::ptrdiff_t most = 0;
  bool tie = false;
  for (const ForeignTrainer* trainer : Trainers()) {
    const auto is_mark = [&](std::string_view name) {
      return std::ranges::find(trainer->marks, name) != trainer->marks.end();
    };
    const auto count =
        std::ranges::count_if(entries, [&](const auto& entry) { return is_mark(entry.first); }) +
        std::ranges::count_if(classes, is_mark);
    if (count > most) {
      best = trainer;
      most = count;
      tie = false;
    } else if (count == most) {
      tie = true;
    }
  }
  if (best == nullptr || tie) {
    ThrowInvalidInput(
        "{}: cannot tell which trainer this configuration is for; say --from axolotl, "
        "llama-factory, trl, mlx-lm, openai or sysone",
        file);
  }
  return *best;
}

}  // namespace

std::vector<std::string> MigrationSources() {
  std::vector<std::string> names = {"auto"};
  for (const ForeignTrainer* trainer : Trainers()) names.emplace_back(trainer->from);
  return names;
}

bool IsForeignConfiguration(const YAML::Node& root) {
  if (!root.IsMap()) return false;
  Entries entries;
  Classes classes;
  Flatten(root, entries, classes);
  TrainSettings settings;
  OptionTable table;
  settings.Declare(table);
  const auto foreign = std::count_if(entries.begin(), entries.end(), [&](const auto& entry) {
    return table.Find(entry.first) == nullptr &&
           std::any_of(Trainers().begin(), Trainers().end(), [&](const ForeignTrainer* trainer) {
             const auto& marks = trainer->marks;
             return std::find(marks.begin(), marks.end(), entry.first) != marks.end();
           });
  });
  // One alone may be a key that was copied into a configuration of ours.
  return !classes.empty() || foreign > 1;
}

Migration Migrate(std::string_view text, const std::string& file, const std::string& from) {
  if (file.ends_with(".py") || file.ends_with(".ipynb")) {
    ThrowInvalidInput(
        "{}: programs in Python are not read; write the arguments of its configuration (SFTConfig, "
        "TrainingArguments, LoraConfig) as lines of 'key: value', and give --from trl",
        file);
  }
  const YAML::Node root = ParseYaml(std::string(text), file);
  if (!root.IsMap()) ThrowInvalidInput("{}: expected a configuration, lines of 'key: value'", file);
  Entries entries;
  Classes classes;
  Flatten(root, entries, classes);
  const ForeignTrainer* trainer = nullptr;
  for (const ForeignTrainer* known : Trainers()) {
    if (known->from == from) trainer = known;
  }
  if (trainer == nullptr) trainer = &Recognise(entries, classes, file);
  Migrator migrator(*trainer, entries);
  for (const auto& [key, value] : entries) migrator.Key(key, value);
  return migrator.Finish(file, classes);
}

}  // namespace qlora
