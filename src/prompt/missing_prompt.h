// The difference between what a template's prompt puts before an answer, and what the rendered
// conversation has there.
#ifndef QLORA_PROMPT_MISSING_PROMPT_H_
#define QLORA_PROMPT_MISSING_PROMPT_H_

#include <optional>
#include <string>

#include "prompt/assistant_turns.h"

namespace qlora {

// Templates of models that think write more in the prompt than in a conversation: a thought that is
// empty and closed, or the tag that opens one.
//
//   prompt  <user>Hi</user><model><thought></thought>
//   text    <user>Hi</user><model>Hello</model>
//
// A closed thought of the prompt is put before `turn`, the answer that ends the conversation,
// outside of the turn, as the model will read it there. An opened one would make the answer a
// thought: then a warning is returned. prompt: the usual one for that answer, if there is any.
std::string CompletePrompt(const std::optional<std::string>& prompt, std::string& text,
                           ChatSpan& turn);

}  // namespace qlora

#endif  // QLORA_PROMPT_MISSING_PROMPT_H_
