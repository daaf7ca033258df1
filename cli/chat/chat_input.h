// The input of `qlora chat`: commands, and messages of one line or several.
#ifndef QLORA_CLI_CHAT_CHAT_INPUT_H_
#define QLORA_CLI_CHAT_CHAT_INPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace qlora {

enum class ChatCommand : std::uint8_t { kNone, kHelp, kExit, kReset, kSave, kSystem, kUnknown };

struct ChatLine {
  ChatCommand command = ChatCommand::kNone;
  std::string argument;  // the text after the command, without blanks around it
};

// A line that begins with a slash and a word of letters is a command; "/etc/hosts" is not.
ChatLine ParseChatLine(std::string_view line);

// The commands and keys, for people.
std::string ChatHelp();

// Joins lines to one message. A line that ends with a backslash continues on the next line; lines
// between """ and """ are one message as they are.
class MessageLines {
 public:
  // Adds a line. Returns true when the message is complete.
  bool Add(std::string_view line);
  // The message so far; the next line begins another one.
  std::string Take();
  // True before the first line of a message.
  bool empty() const { return lines_ == 0 && !quoted_; }

 private:
  void Append(std::string_view line);

  std::string text_;
  std::int64_t lines_ = 0;
  bool quoted_ = false;  // after """
};

}  // namespace qlora

#endif  // QLORA_CLI_CHAT_CHAT_INPUT_H_
