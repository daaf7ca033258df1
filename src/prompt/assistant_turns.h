// Finds the assistant's text in a conversation that a template has rendered.
#ifndef QLORA_PROMPT_ASSISTANT_TURNS_H_
#define QLORA_PROMPT_ASSISTANT_TURNS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "prompt/chat_renderer.h"

namespace qlora {

// What a rendering has behind its messages: nothing, or the prompt for the assistant's next turn.
// The template's variables decide what the prompt writes; for models that may think,
// enable_thinking.
enum class TurnPrompt { kNone, kUsual, kWithThoughts, kWithoutThoughts };

// Renders some messages; nothing when the template refuses them, or has no such prompt.
using RenderMessages =
    std::function<std::optional<std::string>(const OrderedJson& messages, TurnPrompt prompt)>;

// Returns the assistant's turns in `text`, which renders `messages` without a prompt. A turn is the
// text that the model has to write when it is given the messages before the turn and a prompt: the
// text that rendering up to and with the turn adds to that prompt, less white space at the end.
//
// Some templates do not grow by appending: they strip thoughts from earlier turns, or move the
// system text to the last question, and so render a message differently once others follow. There,
// the place of a message is the part of the text that changes when the content of the message does.
// The turn begins where the text stops continuing the message before in the way that the prompt
// does: the usual one, or else one that the text continues. The turn ends as it would end in the
// last message, or with one of `special_tokens`. A turn that is closed by another special token
// than as the last message has an open end: no answer ends so.
//
// Cost: 2 renderings for a turn that is appended, about 8 for another, each of up to the whole
// conversation, so that the work for a conversation grows with the square of its turns. A template
// with {% generation %} is rendered once and does not come here.
// Errors: InvalidInput when turns would overlap.
std::vector<ChatSpan> FindAssistantTurns(const RenderMessages& render, const OrderedJson& messages,
                                         const std::string& text,
                                         const std::vector<std::string>& special_tokens);

}  // namespace qlora

#endif  // QLORA_PROMPT_ASSISTANT_TURNS_H_
