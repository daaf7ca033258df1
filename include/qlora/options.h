// Options as data: each is declared once (name, meaning, default) and serves the command line,
// YAML, the help text, the recorded configuration of a run, and the comparison of two
// configurations.
#ifndef QLORA_OPTIONS_H_
#define QLORA_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace qlora {

struct Option {
  using Value =
      std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*>;

  std::string name;                  // Hugging Face key, with underscores
  std::string help;                  // one line
  Value value;                       // where it lives
  std::vector<std::string> aliases;  // other accepted keys
  std::vector<std::string> choices;  // allowed values of a string; empty: any
  bool any_case = false;             // choices, which are in small letters, may be in capitals
  std::string hint = {};             // ends the message about a value that is not taken
  bool is_path = false;              // "~" at the start is the home folder
  bool repeats = false;              // a list: given again, it adds items
  bool needs_text = false;           // of a string: "" is refused, as of a variable that is not set
  bool set = false;                  // given by the user

  std::string ToString() const;             // the current value as the user would write it
  bool Takes(std::string_view text) const;  // OptionTable::Set would take this text
  // The items of comma-separated text of a list; a path that exists is one item, commas or not,
  // also with a weight behind it (PATH:WEIGHT).
  std::vector<std::string> Items(std::string_view text) const;
};

// An option whose value has no effect, given the other options.
struct IdleOption {
  std::string name;
  std::string reason;  // with a remedy
};

// true, yes, on, 1 and their opposites in any case; nothing for other words.
std::optional<bool> ParseBool(std::string_view text);
// True for these words, and for slips of true and false: "ture".
bool IsLikeBool(std::string_view text);

// A path with the home folder ($HOME) in place of "~" at its start.
std::string ExpandHome(std::string_view path);

// The options of one verb. Dashes and underscores in keys are interchangeable.
class OptionTable {
 public:
  // Starts a section of the help text; options added next belong to it.
  void Section(std::string title);
  Option& Add(std::string name, Option::Value value, std::string help,
              std::vector<std::string> aliases = {});
  // A copy of an option of another table, with the same value behind it.
  Option& Add(const Option& option);
  // A path, or a list of paths.
  Option& AddPath(std::string name, Option::Value value, std::string help,
                  std::vector<std::string> aliases = {});
  Option& Choice(std::string name, std::string* value, std::vector<std::string> choices,
                 std::string help, std::vector<std::string> aliases = {});

  // nullptr when no option or alias has this key.
  Option* Find(std::string_view key);
  // Sets from text; `origin` ("--lora_r", "run.yaml:3") starts the error message. A list takes
  // comma-separated text, which replaces the list; blanks around items are dropped. Integers may be
  // written 1e3. Errors (InvalidInput): unknown key, with the nearest known one; a value of the
  // wrong type (NaN and Inf are not numbers), which leaves the option as it was.
  void Set(std::string_view key, std::string_view text, std::string_view origin);
  void Set(std::string_view key, const std::vector<std::string>& items, std::string_view origin);

  const std::vector<Option>& options() const { return options_; }
  // Title and number of the first option of each section.
  const std::vector<std::pair<std::string, std::size_t>>& sections() const { return sections_; }

 private:
  std::vector<Option> options_;
  std::vector<std::pair<std::string, std::size_t>> sections_;
};

}  // namespace qlora

#endif  // QLORA_OPTIONS_H_
