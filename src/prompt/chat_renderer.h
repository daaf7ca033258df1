// The interface for turning a conversation into text.
#ifndef QLORA_PROMPT_CHAT_RENDERER_H_
#define QLORA_PROMPT_CHAT_RENDERER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// Bytes [begin, end) of a rendered conversation, written by the assistant in messages[message]: its
// content, its tool calls and the end-of-turn token.
struct ChatSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t message = 0;
  bool open_end = false;  // what closes the turn here is not what the model has to close it with
};

struct RenderedChat {
  std::string text;                 // special tokens included, BOS too where the template has it
  std::vector<ChatSpan> assistant;  // ascending, disjoint
  // Fields and roles that were given to the template under other names, as "thinking as
  // reasoning_content".
  std::vector<std::string> readings = {};
  std::vector<std::string> warnings = {};  // about the rendering of this conversation
};

struct Conversation;

class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;

  // `messages` is an array of objects with at least a role; `tools` an array or null. May be called
  // by several threads. Errors: InvalidInput, without a place in the data, when the template fails.
  virtual RenderedChat Render(const OrderedJson& messages, const OrderedJson& tools) const = 0;
  // Renders all that a record says. A renderer that knows messages and tools alone ignores the
  // rest.
  virtual RenderedChat RenderConversation(const Conversation& conversation) const;
  // True when the rendering may depend on a variable of this name.
  virtual bool ReadsVariable(std::string_view name) const;

  // Returns everything that the rendering depends on, as text: equal sources, equal renderings.
  virtual std::string source() const = 0;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_CHAT_RENDERER_H_
