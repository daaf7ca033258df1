// OptionTable: finds options by name or alias and parses their values. A value is parsed before
// anything is written, so that options are unchanged after an error.
#include "qlora/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "base/spelling.h"
#include "base/text.h"

namespace qlora {
namespace {

std::vector<std::string> TruthValues() { return {"true", "false"}; }

std::string Normalise(std::string_view key) {
  std::string out(key);
  // --max-length and max_length are one option: command lines and files are read by one table.
  std::ranges::replace(out, '-', '_');
  return out;
}

// Names and aliases.
std::vector<std::string> NamesOf(const std::vector<Option>& options) {
  std::vector<std::string> names;
  for (const Option& option : options) {
    names.push_back(option.name);
    names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  }
  return names;
}

// The names, some at most, of which `part` is a word: neftune of neftune_noise_alpha.
std::vector<std::string> NamesWith(std::string_view part, const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> found;
  const std::string word = fmt::format("_{}_", part);
  for (const std::string& name : names) {
    const std::string whole = fmt::format("_{}_", name);
    const bool ends = part.size() > 3 && name.ends_with(part);  // rslora of use_rslora
    if (found.size() < kMost && (ends || whole.find(word) != whole.npos)) found.push_back(name);
  }
  return found;
}

// True when the whole of `text` is a number that T cannot hold.
template <typename T>
bool IsOutOfRange(std::string_view text) {
  T value = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

std::optional<double> ParseFinite(std::string_view text) {
  const std::optional<double> value = ParseNumber<double>(text);
  // from_chars reads "nan" and "inf", which no option can use.
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Accepts 1e3 as an integer.
std::optional<std::int64_t> ParseInteger(std::string_view text) {
  if (const auto integer = ParseNumber<std::int64_t>(text)) return integer;
  const std::optional<double> value = ParseFinite(text);
  // Up to 1e15 every integer is a double; above 2^53 digits would be lost without a word.
  if (!value || std::abs(*value) > 1e15 || *value != std::trunc(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

// Returns the choice that `text` names, or `text` when there are no fixed choices.
std::optional<std::string_view> ParseChoice(std::string_view text, const Option& option) {
  if (option.needs_text && text.empty()) return std::nullopt;
  if (option.choices.empty()) return text;
  const std::string wanted = option.any_case ? LowerCase(text) : std::string(text);
  const auto found = std::ranges::find(option.choices, wanted);
  if (found == option.choices.end()) return std::nullopt;
  return *found;
}

// Returns the choices that a misspelt one may mean: those that begin with it, or the nearest, both
// without regard to capitals and to signs between words. "q4km" is q4_k_m.
std::vector<std::string> NearChoices(std::string_view text,
                                     const std::vector<std::string>& choices) {
  const auto plain = [](std::string_view word) {
    std::string letters = LowerCase(word);
    std::erase_if(letters, [](char c) { return c == '_' || c == '-' || c == '.' || c == ' '; });
    return letters;
  };
  const std::string wanted = plain(text);
  std::vector<std::string> all;
  for (const std::string& choice : choices) all.push_back(plain(choice));
  std::vector<std::string> near;
  const auto take = [&](const auto& is_near) {
    for (std::size_t i = 0; i < all.size() && !wanted.empty(); ++i) {
      if (is_near(all[i])) near.push_back(choices[i]);
    }
    return !near.empty();
  };
  if (take([&](const std::string& word) { return word == wanted; })) return near;
  if (take([&](const std::string& word) { return word.starts_with(wanted); })) return near;
  const std::vector<std::string> nearest = AllNearest(wanted, all);
  take([&](const std::string& word) { return std::ranges::count(nearest, word) > 0; });
  return near;
}

// Ends the message about a value that an option does not take, but perhaps another one of `all`.
std::string AdviceOn(std::string_view text, const Option& option, const std::vector<Option>& all) {
  constexpr std::size_t kMost = 4;
  const bool is_flag = std::holds_alternative<bool*>(option.value);
  const std::vector<std::string> near = NearChoices(text, is_flag ? TruthValues() : option.choices);
  if (!near.empty() && near.size() <= kMost) {
    return fmt::format("; did you mean '{}'?", fmt::join(near, "' or '"));
  }
  if (!option.hint.empty()) return "; " + option.hint;
  const std::string name = LowerCase(text);
  // auto, true, false and none are choices of many.
  const bool says_all = name == "auto" || name == "none" || ParseBool(name).has_value();
  if (says_all || (!is_flag && option.choices.empty())) return "";
  const auto other = std::ranges::find_if(
      all, [&](const Option& o) { return std::ranges::count(o.choices, name) != 0; });
  return other == all.end() ? "" : fmt::format("; that is a choice of {}", other->name);
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    // "a, b," has two items: a trailing comma is not an empty path.
    if (const std::string_view item = Trimmed(text.substr(0, comma)); !item.empty()) {
      items.emplace_back(item);
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

void SetList(const Option& option, std::vector<std::string> items) {
  if (option.is_path) {
    for (std::string& item : items) item = ExpandHome(item);
  }
  *std::get<std::vector<std::string>*>(option.value) = std::move(items);
}

}  // namespace

std::string ExpandHome(std::string_view path) {
  const char* home = std::getenv("HOME");
  const bool named = path == "~" || path.starts_with("~/");
  // A shell expands ~ only at the start of a word, not in --option=~/x or in a file.
  if (!named || home == nullptr || *home == '\0') return std::string(path);
  return std::string(home).append(path.substr(1));
}

std::optional<bool> ParseBool(std::string_view text) {
  const std::string word = LowerCase(text);
  // The words of YAML 1.1, in which other trainers' files are written.
  if (word == "true" || word == "yes" || word == "on" || word == "1") return true;
  if (word == "false" || word == "no" || word == "off" || word == "0") return false;
  return std::nullopt;
}

bool IsLikeBool(std::string_view text) {
  return ParseBool(text).has_value() || !Nearest(LowerCase(text), TruthValues()).empty();
}

std::string Option::ToString() const {
  struct Printer {
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const std::int64_t* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return fmt::format("{}", *v); }
    std::string operator()(const std::string* v) const { return *v; }
    std::string operator()(const std::vector<std::string>* v) const {
      return fmt::format("{}", fmt::join(*v, ","));
    }
  };
  return std::visit(Printer{}, value);
}

std::vector<std::string> Option::Items(std::string_view text) const {
  const auto exists = [](std::string_view path) {
    std::error_code ignored;
    return !path.empty() && std::filesystem::exists(ExpandHome(path), ignored);
  };
  // Commas separate paths, but are also allowed in names: the file system decides. So it does where
  // a weight is behind the path.
  const std::size_t colon = std::min(text.rfind(':'), text.size());
  const bool is_weighted =
      text.find(',', colon) == std::string_view::npos && exists(text.substr(0, colon));
  const bool is_one_path = is_path && (exists(text) || is_weighted);
  return is_one_path ? std::vector<std::string>{std::string(text)} : SplitCommas(text);
}

bool Option::Takes(std::string_view text) const {
  struct Parser {
    const Option& option;
    std::string_view text;

    bool operator()(const bool*) const { return ParseBool(text).has_value(); }
    bool operator()(const std::int64_t*) const { return ParseInteger(text).has_value(); }
    bool operator()(const double*) const { return ParseFinite(text).has_value(); }
    bool operator()(const std::string*) const { return ParseChoice(text, option).has_value(); }
    bool operator()(const std::vector<std::string>*) const { return true; }
  };
  return std::visit(Parser{*this, text}, value);
}

void OptionTable::Section(std::string title) {
  sections_.emplace_back(std::move(title), options_.size());
}

Option& OptionTable::Add(std::string name, Option::Value value, std::string help,
                         std::vector<std::string> aliases) {
  Option& option = options_.emplace_back();
  option.name = std::move(name);
  option.help = std::move(help);
  option.value = value;
  option.aliases = std::move(aliases);
  return option;
}

Option& OptionTable::Add(const Option& option) { return options_.emplace_back(option); }

Option& OptionTable::AddPath(std::string name, Option::Value value, std::string help,
                             std::vector<std::string> aliases) {
  Option& option = Add(std::move(name), value, std::move(help), std::move(aliases));
  option.is_path = true;
  return option;
}

Option& OptionTable::Choice(std::string name, std::string* value, std::vector<std::string> choices,
                            std::string help, std::vector<std::string> aliases) {
  Option& option = Add(std::move(name), value, std::move(help), std::move(aliases));
  option.choices = std::move(choices);
  return option;
}

Option* OptionTable::Find(std::string_view key) {
  const std::string name = Normalise(key);
  for (Option& option : options_) {
    if (option.name == name || std::ranges::find(option.aliases, name) != option.aliases.end()) {
      return &option;
    }
  }
  return nullptr;
}

void OptionTable::Set(std::string_view key, std::string_view text, std::string_view origin) {
  Option* option = Find(key);
  if (option == nullptr) {
    // An unknown option is an error and not a warning: a mistyped learning_rate would train a whole
    // run with the default.
    const std::vector<std::string> names = NamesOf(options_);
    std::vector<std::string> meant = {Nearest(Normalise(key), names)};
    if (meant[0].empty()) meant = NamesWith(Normalise(key), names);
    ThrowInvalidInput("{}: unknown option '{}'{}", origin, key,
                      meant.empty()
                          ? "; see --help"
                          : fmt::format("; did you mean '{}'?", fmt::join(meant, "' or '")));
  }
  const auto parsed = [&](const auto& value, std::string_view expected) {
    if (!value) {
      // A message names the option once where the user wrote its name, with dashes or without.
      const std::string written = Normalise(origin);
      const bool is_named = written == option->name || written == "__" + option->name;
      ThrowInvalidInput("{}: {}{}expects {}, found '{}'{}", origin, is_named ? "" : option->name,
                        is_named ? "" : " ", expected, text, AdviceOn(text, *option, options_));
    }
    return *value;
  };
  if (bool** flag = std::get_if<bool*>(&option->value)) {
    // The value is parsed before anything is written: an error leaves the options unchanged.
    **flag = parsed(ParseBool(text), "true or false");
  } else if (std::int64_t** integer = std::get_if<std::int64_t*>(&option->value)) {
    **integer = parsed(ParseInteger(text), IsOutOfRange<std::int64_t>(text)
                                               ? "an integer between -2^63 and 2^63 - 1"
                                               : "an integer");
  } else if (double** number = std::get_if<double*>(&option->value)) {
    **number = parsed(ParseFinite(text), IsOutOfRange<double>(text)
                                             ? "a number whose size a double can hold (1e-307 to "
                                               "1e308)"
                                             : "a number");
  } else if (std::string** string = std::get_if<std::string*>(&option->value)) {
    const std::string expected = option->choices.empty()
                                     ? "text"
                                     : fmt::format("one of {}", fmt::join(option->choices, ", "));
    const std::string_view value = parsed(ParseChoice(text, *option), expected);
    **string = option->is_path ? ExpandHome(value) : std::string(value);
  } else {
    SetList(*option, option->Items(text));
  }
  // Tells a value that was given from a default that happens to be equal.
  option->set = true;
}

void OptionTable::Set(std::string_view key, const std::vector<std::string>& items,
                      std::string_view origin) {
  Option* option = Find(key);
  if (option != nullptr && std::holds_alternative<std::vector<std::string>*>(option->value)) {
    SetList(*option, items);
    option->set = true;
    return;
  }
  if (option != nullptr) {
    ThrowInvalidInput("{}: {} takes one value, found a list of {}", origin, option->name,
                      items.size());
  }
  // No such option: throws the error with the nearest name.
  Set(key, std::string_view(), origin);
}

}  // namespace qlora
