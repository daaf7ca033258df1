// The content of a message as a list of parts: text, thoughts, calls of tools and their results.
#ifndef QLORA_PROMPT_CONTENT_PARTS_H_
#define QLORA_PROMPT_CONTENT_PARTS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// A content, taken apart.
struct ContentParts {
  std::optional<std::string> text;      // none: the content is null or has no part of text
  std::vector<std::string> texts = {};  // the parts of the text
  std::string thoughts = {};
  OrderedJson calls = OrderedJson::array();    // {type, id, function {name, arguments}}
  OrderedJson results = OrderedJson::array();  // messages {role: tool, content, tool_call_id}
  bool has_hidden_thoughts = false;            // encrypted ones, which no template shows
};

// True for a value that is neither a text nor parts of a content, but an object or a list of its
// own: the result of a tool as data.
bool IsData(const OrderedJson& content);

// Reads null, text, a number (as JSON writes it), true or false, or parts, one or a list:
// OpenAI's text, and Anthropic's text, thinking, redacted_thinking, tool_use and tool_result.
// `where` names the message, `key` its field. Errors: InvalidInput, naming a part that is no text.
ContentParts ReadContent(const OrderedJson& content, const std::string& where,
                         std::string_view key = "content");

// Returns a text, or a number, true or false as text. Errors: InvalidInput for other values.
std::string TextOfValue(const OrderedJson& value, std::string_view where, std::string_view key);

}  // namespace qlora

#endif  // QLORA_PROMPT_CONTENT_PARTS_H_
