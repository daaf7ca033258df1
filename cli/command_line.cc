#include "command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include "errors.h"

namespace qlora {
namespace {

struct Argument {
  std::string key;
  std::string value;
  std::string origin;  // as the user wrote it, for messages
};

bool IsBool(const Option* option) {
  return option != nullptr && std::holds_alternative<bool*>(option->value);
}

bool IsConfig(std::string_view key) { return key == "config"; }

bool IsKey(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

// Takes the arguments apart without setting anything.
class Scanner {
 public:
  Scanner(const std::vector<std::string>& arguments, const std::vector<std::string>& positionals,
          OptionTable& table)
      : arguments_(arguments), positionals_(positionals), table_(table) {}

  std::vector<Argument> Scan() {
    bool bare_only = false;
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (bare_only) {
        Bare(argument);
      } else if (argument == "--") {
        bare_only = true;
      } else if (argument.starts_with("--")) {
        Dashed(argument);
      } else if (argument.size() > 1 && argument[0] == '-' && IsKey(argument.substr(1))) {
        ThrowUsage("{}: options start with two dashes; write -{}", argument, argument);
      } else if (const std::size_t equals = argument.find('=');
                 equals != std::string::npos && IsKey(argument.substr(0, equals))) {
        const std::string key = argument.substr(0, equals);
        found_.push_back({key, argument.substr(equals + 1), key});
      } else {
        Bare(argument);
      }
    }
    return std::move(found_);
  }

 private:
  void Bare(const std::string& argument) {
    if (bare_ == positionals_.size()) {
      ThrowUsage(
          "'{}': expected --key value or key=value{}", argument,
          positionals_.empty() ? "" : fmt::format(" after {}", fmt::join(positionals_, " ")));
    }
    const std::string& key = positionals_[bare_++];
    found_.push_back({key, argument, fmt::format("'{}'", argument)});
  }

  void Dashed(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const std::string origin = argument.substr(0, equals);
    const std::string key = origin.substr(2);
    if (equals != std::string::npos) {
      found_.push_back({key, argument.substr(equals + 1), origin});
      return;
    }
    const Option* option = table_.Find(key);
    const bool more = next_ < arguments_.size();
    if (IsBool(option)) {
      const bool given = more && ParseBool(arguments_[next_]).has_value();
      found_.push_back({key, given ? arguments_[next_++] : "true", origin});
    } else if (option == nullptr && (key.starts_with("no-") || key.starts_with("no_")) &&
               IsBool(table_.Find(key.substr(3)))) {
      found_.push_back({key.substr(3), "false", origin});
    } else if (option == nullptr && !IsConfig(key)) {
      table_.Set(key, "", origin);  // throws: unknown
    } else if (!more || arguments_[next_].starts_with("--")) {
      ThrowUsage("{0}: a value is missing; write {0} VALUE, or {0}=VALUE if it starts with --",
                 origin);
    } else {
      found_.push_back({key, arguments_[next_++], origin});
    }
  }

  const std::vector<std::string>& arguments_;
  const std::vector<std::string>& positionals_;
  OptionTable& table_;
  std::vector<Argument> found_;
  std::size_t next_ = 0;
  std::size_t bare_ = 0;
};

}  // namespace

bool ParseCommandLine(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& positionals, OptionTable& table) {
  const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
  if (std::any_of(arguments.begin(), options_end,
                  [](const std::string& a) { return a == "-h" || a == "--help"; })) {
    return true;
  }
  const std::vector<Argument> found = Scanner(arguments, positionals, table).Scan();

  std::map<const Option*, std::string> given;  // nullptr stands for the configuration file
  std::optional<std::string> config;
  for (const Argument& argument : found) {
    const Option* option = table.Find(argument.key);
    if (option == nullptr && !IsConfig(argument.key)) {
      table.Set(argument.key, argument.value, argument.origin);  // throws: unknown
    }
    if (const auto [earlier, is_new] = given.emplace(option, argument.origin); !is_new) {
      ThrowUsage(
          "{}: {} is given twice, the first time as {}; keep one (a list is comma-separated)",
          argument.origin, option == nullptr ? "config" : option->name, earlier->second);
    }
    if (option == nullptr) config = argument.value;
  }
  if (config) ReadConfigFile(*config, table);
  for (const Argument& argument : found) {
    if (table.Find(argument.key) != nullptr) {
      table.Set(argument.key, argument.value, argument.origin);
    }
  }
  return false;
}

}  // namespace qlora
