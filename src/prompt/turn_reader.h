// One turn of a record as messages of a conversation.
#ifndef QLORA_PROMPT_TURN_READER_H_
#define QLORA_PROMPT_TURN_READER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "prompt/conversation.h"

namespace qlora {

// The text of a function_call: calls as JSON, perhaps behind a thought in tags.
struct WrittenCalls {
  std::string_view thoughts;
  std::string_view calls;
};
WrittenCalls SplitWrittenCalls(std::string_view text);

// Adds the messages of turns to a conversation, in the one form of conversation.h. A turn of
// results of tools is several messages.
class TurnReader {
 public:
  // origin: of the turn, whose place begins errors. prefers_from: of {from, value, role, content}
  // the first two count.
  TurnReader(Conversation& conversation, Conversation::Origin origin, bool prefers_from);

  // Errors: InvalidInput, naming the field.
  void Add(const OrderedJson& turn);

 private:
  void Rename(const OrderedJson& turn);
  void TakeRole();
  std::optional<bool> TakeFlags();
  void TakeContent();
  void TakeCalls();
  void AddCalls(const OrderedJson& value, std::optional<bool> flag);
  void ReadCalls(OrderedJson& calls);
  void CheckContent(const OrderedJson& turn);
  void Push(OrderedJson message, std::optional<bool> flag, std::vector<std::string> parts = {});
  void Warn(std::string text) { conversation_.warnings.push_back(std::move(text)); }

  Conversation& conversation_;
  const Conversation::Origin origin_;
  const std::string where_;
  const bool prefers_from_;
  OrderedJson message_;  // made of the turn
  OrderedJson results_;  // messages of their own
  std::vector<std::string> arguments_;
  std::vector<std::string> text_parts_;  // of the content
  std::string role_;
  const char* role_key_ = "role";
  const char* key_ = "content";
  bool by_from_ = false;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_TURN_READER_H_
