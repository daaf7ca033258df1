// Finds what the assistant wrote in a conversation that a template has rendered.
#ifndef QLORA_DATA_ASSISTANT_TURNS_H_
#define QLORA_DATA_ASSISTANT_TURNS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/conversation.h"

namespace qlora {

// Renders some messages, with or without the prompt for the assistant's next turn; nothing when the
// template refuses them.
using RenderMessages =
    std::function<std::optional<std::string>(const OrderedJson& messages, bool prompt)>;

// The assistant's turns in `text`, which renders `messages` without a prompt. A turn is what the
// model has to write when it is given the messages before the turn and a prompt: what rendering up
// to and with the turn adds to that prompt, less white space behind it.
//
// Templates that render a message otherwise once more follow (that strip thoughts from earlier
// turns, or move the system text to the last question) do not grow by appending. There, the place
// of a message is what changes in the text when the content of the message does; around it, the
// turn begins where the text ceases to continue the message before as the prompt does, and ends as
// it does when it is the last message, or else with one of `special_tokens`.
// Errors: InvalidInput when turns would overlap.
std::vector<ChatSpan> FindAssistantTurns(const RenderMessages& render, const OrderedJson& messages,
                                         const std::string& text,
                                         const std::vector<std::string>& special_tokens);

}  // namespace qlora

#endif  // QLORA_DATA_ASSISTANT_TURNS_H_
