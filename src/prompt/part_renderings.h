// Renderings of the first messages of a conversation, and where in them a message stands.
#ifndef QLORA_PROMPT_PART_RENDERINGS_H_
#define QLORA_PROMPT_PART_RENDERINGS_H_

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/json_fwd.h"

namespace qlora {

// What a rendering has behind its messages: nothing, or the prompt for the assistant's next turn.
// The template's variables decide what the prompt writes; for models that may think,
// enable_thinking.
enum class TurnPrompt { kNone, kUsual, kWithThoughts, kWithoutThoughts };

// Renders some messages; nothing when the template refuses them, or has no such prompt.
using RenderMessages =
    std::function<std::optional<std::string>(const OrderedJson& messages, TurnPrompt prompt)>;

// The first messages of a conversation, and what is behind them.
struct ConversationPart {
  std::size_t count;
  TurnPrompt prompt = TurnPrompt::kNone;

  auto operator<=>(const ConversationPart&) const = default;
};

// Bytes [begin, end) of a text.
struct TextPlace {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The number of bytes that `a` and `b` begin with.
std::size_t CommonTextPrefix(std::string_view a, std::string_view b);

// Renders each part once, and a few variations of it for each place. The arguments of the
// constructor must outlive it.
class PartRenderings {
 public:
  // text: the rendering of all `messages` without a prompt.
  PartRenderings(const RenderMessages& render, const OrderedJson& messages,
                 const std::string& text);

  const OrderedJson& messages() const { return messages_; }
  const std::string& text() const { return text_; }
  ConversationPart whole() const;

  // Returns the text of a part; nothing when the template refuses it.
  const std::optional<std::string>& Text(const ConversationPart& part);
  // Returns the part of that text that changes when what message m says does; nothing when the
  // template refuses the part, or does not show the message there.
  std::optional<TextPlace> PlaceOf(std::size_t m, const ConversationPart& part);
  // Returns the text behind that place.
  std::optional<std::string_view> Behind(std::size_t m, const ConversationPart& part);

  // Forgets all texts but the last prompts, and keeps the places: the texts of all parts of a long
  // conversation would fill the memory.
  void ForgetTexts();

 private:
  using Change = OrderedJson (*)(OrderedJson message, const char* word);

  std::optional<TextPlace> FindPlace(std::size_t m, const ConversationPart& part);
  std::optional<TextPlace> Difference(std::size_t m, const ConversationPart& part,
                                      const std::string& text, Change change) const;

  const RenderMessages& render_;
  const OrderedJson& messages_;
  const std::string& text_;
  std::map<ConversationPart, std::optional<std::string>> texts_;
  std::map<std::pair<std::size_t, ConversationPart>, std::optional<TextPlace>> places_;
};

}  // namespace qlora

#endif  // QLORA_PROMPT_PART_RENDERINGS_H_
