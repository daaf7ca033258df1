// Finds the assistant's text in a conversation that a template has rendered.
#ifndef QLORA_PROMPT_ASSISTANT_TURNS_H_
#define QLORA_PROMPT_ASSISTANT_TURNS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "prompt/part_renderings.h"

namespace qlora {

// Bytes [begin, end) of a rendered conversation, written by the assistant in messages[message]: its
// content, its tool calls and the end-of-turn token.
struct ChatSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t message = 0;
  bool open_end = false;  // what closes the turn here is not what the model has to close it with
};

// Returns the assistant's turns in the text of a conversation. A turn is the text that the model
// has to write when it is given the messages before the turn and a prompt: the text that rendering
// up to and with the turn adds to that prompt, less white space at the end.
//
// Some templates do not grow by appending: they strip thoughts from earlier turns, or move the
// system text to the last question, and so render a message differently once others follow. There,
// the place of a message is the part of the text that changes when the content of the message does.
// The turn begins where the text stops continuing the message before in the way that the prompt
// does: the usual one, or else one that the text continues. The turn ends as it would end in the
// last message, or with one of `special_tokens`. A turn that is closed by another special token
// than as the last message has an open end: no answer ends so.
//
// Looks for the turns of `trained` messages and of the last one alone, unless one that is trained
// is not appended: only then may it overlap others. Cost: 2 renderings for a turn that is appended
// (1 for the last message), about 6 for another, each of up to the whole conversation, so that the
// work for a conversation grows with the square of its turns. A template with {% generation %} is
// rendered once and does not come here. Errors: InvalidInput when turns would overlap.
std::vector<ChatSpan> FindAssistantTurns(PartRenderings& parts, const std::vector<bool>& trained,
                                         const std::vector<std::string>& special_tokens);

}  // namespace qlora

#endif  // QLORA_PROMPT_ASSISTANT_TURNS_H_
