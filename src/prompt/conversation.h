// Conversations: from the records that people write to the messages that a chat template takes.
#ifndef QLORA_PROMPT_CONVERSATION_H_
#define QLORA_PROMPT_CONVERSATION_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// One conversation, in the form that chat templates take.
struct Conversation {
  OrderedJson messages;        // objects {role, content, ...}; content is text, null or a result
  OrderedJson tools;           // array, or null
  std::vector<bool> trained;   // per message: an assistant's turn that is to be learned
  OrderedJson variables = {};  // of the chat template, for this record: an object, or null
  // Per message, per tool call: the arguments as the record has them, where they are text.
  std::vector<std::vector<std::string>> argument_texts = {};
  // Per message: the parts of its text, where the record has several. The content is all of them.
  std::vector<std::vector<std::string>> text_parts = {};
  std::vector<std::string> warnings = {};       // what is left out of the record, and why
  std::vector<std::string> fields = {};         // of the record, which the conversation holds
  std::vector<std::string> unused_fields = {};  // of the record: known names of other contents
  // Per message: the list of the record that it comes from, and the number of its turn there; a
  // field that is no list, turn 0; "" for a text made of several fields.
  struct Origin {
    std::string field;
    std::int64_t turn = 0;

    bool operator==(const Origin&) const = default;
  };
  std::vector<Origin> origins = {};

  void Add(OrderedJson message, bool is_trained, Origin origin,
           std::vector<std::string> arguments = {}, std::vector<std::string> parts = {});
  void Erase(std::size_t m);
  // Removes the messages from `count` on.
  void Shorten(std::size_t count);
};

// All formats read turns in one way, with the fields and the roles of known_fields.h:
// - {"role", "content", ...} of OpenAI and Hugging Face, or {"from", "value", ...} of ShareGPT, or
//   pairs {"human", "assistant"}, {"system", "input", "output"};
// - what nobody wrote takes one form (missing_values.h): beside calls of tools a content is text or
//   null, never "";
// - a content of parts is taken apart (content_parts.h); numbers become text; the result of a tool
//   may be an object;
// - function_call, as field or as role, becomes tool_calls; their arguments become an object;
// - flags such as "weight": 0 keep an assistant's message out of the loss;
// - other fields stay in the message, and the template may read them.
// Errors (all functions): InvalidInput, without a place in the data, naming the message.

// Reads {"messages": [...]}, and of the record the system text, tools and variables, as all do. An
// answer beside messages that end with another role (`response`, `answer` ...) is the last turn.
Conversation ConversationOfMessages(const OrderedJson& record);

// Reads {"conversations": [...]}.
Conversation ConversationOfShareGpt(const OrderedJson& record);

// Reads {"prompt": [messages], "completion": [messages]}: only the completion is trained on.
Conversation ConversationOfCompletion(const OrderedJson& record);
// Reads the prompt of such a record.
Conversation ConversationOfPrompt(const OrderedJson& record);

using FieldTest = std::function<bool(std::string_view)>;

// Returns what a record says besides its turns: a conversation of a system message, or of none.
// is_laid_out: of a record of fields, the names that its layout reads in another way; null for a
// record of messages. Tools and variables of a record of fields that are neither a list nor an
// object go to unused_fields.
Conversation BeginConversation(const OrderedJson& record, const FieldTest& is_laid_out = nullptr);

}  // namespace qlora

#endif  // QLORA_PROMPT_CONVERSATION_H_
