#include "chat/chat_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace qlora {
namespace {

struct KnownCommand {
  std::string_view name;
  ChatCommand command;
  std::string_view usage;  // "": another name of the command before
  std::string_view meaning;
};
// One table for recognition and /help.
constexpr auto kCommands = std::to_array<KnownCommand>({
    {"help", ChatCommand::kHelp, "/help", "show this list"},
    {"reset", ChatCommand::kReset, "/reset", "forget the conversation"},
    {"save", ChatCommand::kSave, "/save FILE", "write the conversation as a record for train"},
    {"system", ChatCommand::kSystem, "/system TEXT", "set the system message; no TEXT: none"},
    {"exit", ChatCommand::kExit, "/exit", "end (also /quit, /bye, Ctrl+D)"},
    {"quit", ChatCommand::kExit, "", ""},
    {"bye", ChatCommand::kExit, "", ""},
});

constexpr std::string_view kQuotes = "\"\"\"";

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string_view WithoutBlanks(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

ChatLine ParseChatLine(std::string_view line) {
  if (!line.starts_with('/')) return {};
  // "/home/me is full" is a message: a command is letters alone, up to a blank or the end.
  const auto end = std::find_if_not(line.begin() + 1, line.end(), IsAsciiLetter);
  const std::string_view name(line.begin() + 1, end);
  const std::string_view rest(end, line.end());
  const bool ends = rest.empty() || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r';
  if (name.empty() || !ends) return {};
  const auto known = std::find_if(kCommands.begin(), kCommands.end(),
                                  [&](const KnownCommand& c) { return c.name == name; });
  // A mistyped command is not sent to the model.
  return {known == kCommands.end() ? ChatCommand::kUnknown : known->command,
          std::string(WithoutBlanks(rest))};
}

std::string ChatHelp() {
  std::string help;
  const auto add = [&help](std::string_view usage, std::string_view meaning) {
    help += fmt::format("  {:<14}{}\n", usage, meaning);
  };
  for (const KnownCommand& command : kCommands) {
    if (!command.usage.empty()) add(command.usage, command.meaning);
  }
  add("... \\", "a backslash at the end continues the message on the next line");
  add("\"\"\"", "begins and ends a message of several lines");
  add("Ctrl+C", "stop the answer; at the prompt, drop what was typed");
  return help;
}

void MessageLines::Append(std::string_view line) {
  if (lines_ > 0) text_ += '\n';
  text_ += line;
  ++lines_;
}

// A line with nothing but """ adds no line to the message.
bool MessageLines::Add(std::string_view line) {
  // Quotes in the middle of a message are text.
  if (empty() && line.starts_with(kQuotes)) {
    // From here on backslashes and slashes are text, until the closing quotes.
    quoted_ = true;
    line.remove_prefix(kQuotes.size());
    if (line.empty()) return false;
  }
  if (quoted_) {
    const bool ends = line.ends_with(kQuotes);
    if (ends) line.remove_suffix(kQuotes.size());
    if (!ends || !line.empty()) Append(line);
    return ends;
  }
  // As in shells.
  const bool continues = line.ends_with('\\');
  if (continues) line.remove_suffix(1);
  Append(line);
  return !continues;
}

std::string MessageLines::Take() {
  lines_ = 0;
  quoted_ = false;
  // Leaves a state in which the next line begins a message.
  return std::exchange(text_, {});
}

}  // namespace qlora
