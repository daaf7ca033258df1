#include "command/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "command/config_file.h"
#include "foreign/foreign_option.h"
#include "foreign/rules.h"
#include "foreign/yaml_options.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

struct Argument {
  std::string key;
  YAML::Node value;
  std::string origin;  // as the user wrote it, for messages
  bool foreign = false;
  bool bare = false;
  bool yields = false;  // ForeignOption::yields
};

// True for flags, and for choices that are flags or left to the program: auto, true, false.
bool IsBool(const Option* option) {
  if (option == nullptr) return false;
  const auto has = [&](const char* choice) {
    return std::ranges::find(option->choices, choice) != option->choices.end();
  };
  return std::holds_alternative<bool*>(option->value) || (has("true") && has("false"));
}

bool IsChoice(const Option& option, const std::string& word) {
  return std::ranges::find(option.choices, word) != option.choices.end();
}

bool IsList(const Option* option) {
  return option != nullptr && std::holds_alternative<std::vector<std::string>*>(option->value);
}

bool IsConfig(std::string_view key) { return key == "config"; }

bool IsYamlFile(std::string_view word) { return word.ends_with(".yaml") || word.ends_with(".yml"); }

// True when a letter is first: "-5" and "=x" are values.
bool IsKey(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

// Returns the place of the sign in "key=value".
std::size_t SignOf(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  return equals != std::string::npos && IsKey(argument.substr(0, equals)) ? equals
                                                                          : std::string::npos;
}

// True unless the argument is an option ("--lr", "-n") or key=value; "-" and "-5" are words.
bool IsWord(const std::string& argument) {
  // A single dash before letters is a short flag.
  const bool dashed = argument.starts_with("--") ||
                      (argument.size() > 1 && argument[0] == '-' && IsKey(argument.substr(1)));
  return !dashed && SignOf(argument) == std::string::npos;
}

// True for a file or folder, such as "sweep/lr=1".
bool IsPath(const std::string& argument) {
  std::error_code ignored;
  return std::filesystem::exists(argument, ignored);
}

// The items of a list option's value: of a text, which is a JSON list or comma-separated, or of a
// list.
std::vector<std::string> ItemsOf(const Option& option, const YAML::Node& value,
                                 const std::string& origin) {
  if (!value.IsScalar()) return value.as<std::vector<std::string>>();
  const auto listed = ItemsOfJson(option, value.Scalar(), origin);
  return listed ? *listed : option.Items(value.Scalar());
}

// Appends the items of a word to those of a list.
void Append(const Option& option, const std::string& word, Argument& list) {
  std::vector<std::string> items = ItemsOf(option, list.value, list.origin);
  for (std::string& item : ItemsOf(option, YAML::Node(word), list.origin)) {
    items.push_back(std::move(item));
  }
  list.value.reset(YAML::Node(items));
}

// Takes the arguments apart without setting anything.
class Scanner {
 public:
  Scanner(const std::vector<std::string>& arguments, const VerbText& text, OptionTable& table,
          std::vector<std::string>& notes)
      : arguments_(arguments), text_(text), table_(table), notes_(notes) {}

  std::vector<Argument> Scan() {
    bool bare_only = false;
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (bare_only) {
        bare_.push_back(argument);
      } else if (argument == "--") {
        // Behind "--" everything is a word, as in all commands: texts may begin with a dash.
        bare_only = true;
      } else if (argument.starts_with("--")) {
        Dashed(argument, argument.substr(2));
      } else if (argument.size() > 1 && argument[0] == '-' && IsKey(argument.substr(1))) {
        Short(argument);
      } else if (const std::size_t equals = SignOf(argument);
                 // A file called lr=1 is a file.
                 equals != std::string::npos && !IsPath(argument)) {
        const std::string key = argument.substr(0, equals);
        const bool known = table_.Find(key) != nullptr || IsConfig(key) || IsForeignOption(key);
        Add(key, argument.substr(equals + 1),
            known ? key : fmt::format("{} (write -- or its option before a text with =)", key));
      } else {
        bare_.push_back(argument);
      }
    }
    // After all options, since only then is it known which positionals are still open.
    PlaceBare();
    GiveBack();
    return std::move(found_);
  }

 private:
  // A word behind the values of a list: an item, unless a required option still needs it.
  struct Loose {
    std::size_t list;  // in found_
    std::string word;
  };

  // Adds an option of ours, or translates another program's option into ours.
  void Add(const std::string& key, const std::string& value, const std::string& origin) {
    const bool is_ours = table_.Find(key) != nullptr && !IsForeignValue(table_, key, value);
    if (is_ours || IsConfig(key)) {
      found_.push_back({key, YAML::Node(value), origin, false});
      return;
    }
    if (!IsForeignOption(key)) ThrowUnknown(key, origin);
    const ForeignOption option = TranslateOption(table_, key, YAML::Node(value), origin);
    for (const auto& [ours, node] : option.settings) {
      found_.push_back({ours, node, origin, true, false, option.yields});
    }
    notes_.insert(notes_.end(), option.notes.begin(), option.notes.end());
  }

  void ThrowUnknown(const std::string& key, const std::string& origin) {
    RefuseTrainSetting(key, origin);
    table_.Set(key, "", origin);  // throws: unknown
  }

  // Places bare arguments, which set the positionals that no option sets. Too many of them are
  // placed as if no option had set any, for the message.
  void PlaceBare() {
    const auto is_list = [&](const std::vector<std::string>& keys) {
      return !keys.empty() && IsList(table_.Find(keys.back()));
    };
    std::vector<std::string> keys;
    for (const std::string& key : text_.positionals) {
      if (!IsGiven(key)) keys.push_back(key);
    }
    if (bare_.size() > keys.size() && !is_list(keys)) keys = text_.positionals;
    for (std::size_t i = 0; i < bare_.size(); ++i) {
      if (i < keys.size()) {
        Add(keys[i], bare_[i], fmt::format("'{}'", bare_[i]));
        found_.back().bare = true;
      } else if (is_list(keys)) {
        Append(*table_.Find(keys.back()), bare_[i], found_.back());
      } else {
        ThrowTooMany(bare_[i]);
      }
    }
  }

  [[noreturn]] void ThrowTooMany(const std::string& argument) const {
    if (text_.positionals == std::vector<std::string>{"config"}) {
      ThrowInvalidInput(
          "'{}': expected --key value or key=value; '{}' was taken as the configuration file, the "
          "one argument without a key: write --model MODEL --dataset FILE",
          argument, found_.back().value.Scalar());
    }
    // The words that are taken: qlora generate MODEL PROMPT.
    ThrowInvalidInput(
        "unexpected '{}'{}", argument,
        text_.positionals.empty()
            ? ": options are written as --key value or key=value"
            : fmt::format(" after {}; put quotes around a value of several words, and write "
                          "options as --key value or key=value",
                          fmt::join(text_.positionals, " ")));
  }

  // Short flags are names of other programs.
  void Short(const std::string& argument) {
    const std::string key = argument.substr(1);
    if (table_.Find(key) != nullptr) {
      ThrowInvalidInput("{}: options start with two dashes; write -{}", argument, argument);
    }
    if (!IsForeignOption(key)) {
      ThrowInvalidInput("{}: unknown option; options start with two dashes", argument);
    }
    Dashed(argument, key);
  }

  // argument: "--key" or "--key=value"; key: the same without dashes.
  void Dashed(const std::string& argument, std::string key) {
    const std::size_t equals = key.find('=');
    const std::string origin = argument.substr(0, argument.find('='));
    if (equals != std::string::npos) {
      const std::string value = key.substr(equals + 1);
      key.resize(equals);
      if (IsNegated(key)) ThrowNegated(origin, value);
      Add(key, value, origin);
      return;
    }
    const Option* option = table_.Find(key);
    const bool foreign = option == nullptr && !IsConfig(key) && IsForeignOption(key);
    const bool more = next_ < arguments_.size();
    if (IsBool(option)) {
      // A flag takes the next word only if that is for it: "--packing ./data" leaves the path
      // alone.
      const bool given = more && (IsForFlag(arguments_[next_]) ||
                                  IsChoice(*option, LowerCase(arguments_[next_])) ||
                                  IsForeignFlagValue(key, arguments_[next_]));
      Add(key, given ? arguments_[next_++] : "true", origin);
    } else if (IsNegated(key)) {
      if (more && IsForFlag(arguments_[next_])) ThrowNegated(origin, arguments_[next_]);
      Add(key.substr(3), "false", origin);
    } else if (foreign) {
      Foreign(key, origin);
    } else if (option == nullptr && !IsConfig(key)) {
      ThrowUnknown(key, origin);
      // A value that begins with two dashes is nearly always the next option.
    } else if (!more || arguments_[next_].starts_with("--")) {
      ThrowInvalidInput(
          "{0}: a value is missing; write {0} VALUE, or {0}=VALUE if it starts with --", origin);
    } else {
      Add(key, arguments_[next_++], origin);
      // --dataset a.jsonl b.jsonl: argparse of other trainers allows for lists without commas.
      if (IsList(option)) TakeLoose();
    }
  }

  // True for a word behind a flag that is meant for the flag, right or wrong: a truth value or a
  // slip of one ("tree" as a text goes before the flag, or behind --), and where a configuration
  // file may stand, a word that cannot be one.
  bool IsForFlag(const std::string& word) const {
    if (ParseBool(word)) return true;
    if (!IsWord(word) || IsPath(word)) return false;
    return IsLikeBool(word) || (TakesConfig() && word.find_first_of("./") == std::string::npos);
  }

  // --no-key, with a value behind it or in it.
  [[noreturn]] static void ThrowNegated(const std::string& origin, const std::string& value) {
    ThrowInvalidInput("{}: takes no value, found '{}'; write --{} true or --{} false", origin,
                      value, origin.substr(5), origin.substr(5));
  }

  // True for no-key of a flag, unless an option is really called so.
  bool IsNegated(const std::string& key) const {
    if (table_.Find(key) != nullptr || IsForeignOption(key)) return false;
    if (!key.starts_with("no-") && !key.starts_with("no_")) return false;
    const Option* option = table_.Find(key.substr(3));
    return option == nullptr ? IsForeignOption(key.substr(3)) : IsBool(option);
  }

  void Foreign(const std::string& key, const std::string& origin) {
    const bool more = next_ < arguments_.size();
    const bool given = more && (IsWord(arguments_[next_]) || IsText(key, arguments_[next_])) &&
                       !(TakesConfig() && IsYamlFile(arguments_[next_])) &&
                       TakesValue(table_, key, arguments_[next_], TakesWords());
    const std::size_t before = found_.size();
    Add(key, given ? arguments_[next_++] : "true", origin);
    if (given && found_.size() > before && IsList(table_.Find(found_.back().key))) TakeLoose();
  }

  // True for "key=value" behind a name of an option of ours that takes a text, such as -p.
  bool IsText(const std::string& key, const std::string& argument) const {
    return SignOf(argument) != std::string::npos && CopiesText(table_, key);
  }

  bool TakesConfig() const {
    return bare_.size() < text_.positionals.size() && IsConfig(text_.positionals[bare_.size()]);
  }

  void TakeLoose() {
    while (next_ < arguments_.size() && IsWord(arguments_[next_]) &&
           !(TakesConfig() && IsYamlFile(arguments_[next_]))) {
      loose_.push_back({found_.size() - 1, arguments_[next_++]});
    }
  }

  bool IsGiven(const std::string& key) const {
    const Option* option = table_.Find(key);
    return std::any_of(found_.begin(), found_.end(), [&](const Argument& argument) {
      return table_.Find(argument.key) == option;
    });
  }

  // True when a word could still be an argument of the verb, other than a configuration.
  bool TakesWords() const {
    const auto open = std::ranges::count_if(
        text_.positionals, [&](const std::string& key) { return !IsConfig(key) && !IsGiven(key); });
    return open > std::ssize(bare_);
  }

  // Returns the required positionals that no argument so far has set.
  std::vector<std::string> MissingWords() const {
    const std::vector<std::string>& required = text_.required;
    std::vector<std::string> missing;
    for (const std::string& key : text_.positionals) {
      const bool needed = std::find(required.begin(), required.end(), key) != required.end();
      if (needed && !IsGiven(key)) missing.push_back(key);
    }
    return missing;
  }

  // Returns the open positional that need not be given, or "".
  std::string OpenWord(const std::vector<std::string>& missing) const {
    for (const std::string& key : text_.positionals) {
      const bool is_open = !IsGiven(key) && std::ranges::count(missing, key) == 0;
      if (is_open && !IsConfig(key) && !IsList(table_.Find(key))) return key;
    }
    return "";
  }

  // Required positionals that are missing take the last loose words, and lists the others. A last
  // word that is no file or folder is the text of an open positional, not another item:
  // --adapter DIR 'a prompt'.
  void GiveBack() {
    std::vector<std::string> missing = MissingWords();
    // Words for all that is missing come first: with one word, that is the model.
    const bool has_more = std::ssize(loose_) > std::ssize(missing);
    if (has_more && !IsPath(loose_.back().word)) {
      if (const std::string open = OpenWord(missing); !open.empty()) missing.push_back(open);
    }
    const std::int64_t items = std::max<std::int64_t>(std::ssize(loose_) - std::ssize(missing), 0);
    for (std::int64_t i = 0; i < std::ssize(loose_); ++i) {
      if (i < items) {
        Argument& list = found_[loose_[i].list];
        Append(*table_.Find(list.key), loose_[i].word, list);
      } else {
        Add(missing[i - items], loose_[i].word, fmt::format("'{}'", loose_[i].word));
      }
    }
  }

  const std::vector<std::string>& arguments_;
  const VerbText& text_;
  OptionTable& table_;
  std::vector<std::string>& notes_;
  std::vector<Argument> found_;
  std::vector<Loose> loose_;
  std::vector<std::string> bare_;
  std::size_t next_ = 0;
};

// True when two arguments are different names of an option. A word has no name.
bool HaveTwoNames(const Argument& a, const Argument& b) {
  if (a.foreign || b.foreign) return a.origin != b.origin;
  return !a.bare && !b.bare && Underscored(a.key) != Underscored(b.key);
}

// True when two arguments give an option the same value.
bool Agree(const Option& option, const Argument& a, const Argument& b) {
  return ValueFromNode(option, a.value, a.origin) == ValueFromNode(option, b.value, b.origin);
}

}  // namespace

bool ParseCommandLine(const std::vector<std::string>& arguments, const VerbText& text,
                      OptionTable& table, std::vector<std::string>& notes) {
  const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
  if (std::any_of(arguments.begin(), options_end,
                  [](const std::string& a) { return a == "-h" || a == "--help"; })) {
    return true;
  }
  const std::vector<Argument> found = Scanner(arguments, text, table, notes).Scan();

  std::map<const Option*, const Argument*> given;  // nullptr: the configuration file
  std::set<const Argument*> idle;                  // agree with an earlier one, or have yielded
  std::optional<std::string> config;
  for (const Argument& argument : found) {
    const Option* option = table.Find(argument.key);
    const auto [place, is_new] = given.emplace(option, &argument);
    const Argument& first = *place->second;
    // Two names of one option that say the same, such as --lora_r 8 --r 8.
    const bool agree = !is_new && HaveTwoNames(argument, first) && Agree(*option, argument, first);
    if (agree) {
      // What another one disagrees with is the one of the two that does not yield.
      const bool is_first_idle = first.yields && !argument.yields;
      idle.insert(is_first_idle ? &first : &argument);
      if (is_first_idle) place->second = &argument;
    }
    const bool adds = option != nullptr && option->repeats && !argument.bare && !first.bare;
    if (!is_new && !agree && first.yields != argument.yields) {
      const auto [yielded, other] =
          first.yields ? std::pair(&first, &argument) : std::pair(&argument, &first);
      notes.push_back(YieldNote(yielded->origin, other->origin, option->name));
      idle.insert(yielded);
      place->second = other;
    } else if (!is_new && !agree && !adds) {
      const std::string name = option == nullptr ? "config" : option->name;
      // Names both values: the forgotten one may be far back in a long command.
      const bool scalars =
          argument.value.IsScalar() && first.value.IsScalar() && !argument.bare && !first.bare;
      ThrowInvalidInput(
          "{}: {} is given twice, the first time as {}{}; {}", argument.origin, name, first.origin,
          scalars ? fmt::format(" {}, now {}", first.value.Scalar(), argument.value.Scalar()) : "",
          argument.bare ? "write the option that this word is for"
                        : "keep one (a list is comma-separated)");
    }
    if (option == nullptr) config = argument.value.Scalar();
  }
  // The file first, the command line over it.
  if (config) ReadConfigFile(ExpandHome(*config), table, notes);
  for (const Argument& argument : found) {
    const Option* option = table.Find(argument.key);
    // The configuration is read already.
    if (option == nullptr || idle.contains(&argument)) continue;
    if (given[option] == &argument) {
      SetFromNode(table, argument.key, argument.value, argument.origin);
    } else {
      auto& items = *std::get<std::vector<std::string>*>(option->value);
      const std::vector<std::string> before = items;
      SetFromNode(table, argument.key, argument.value, argument.origin);
      items.insert(items.begin(), before.begin(), before.end());
    }
  }
  return false;
}

}  // namespace qlora
