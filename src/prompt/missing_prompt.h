// The difference between what a template's prompt puts before an answer, and what the rendered
// conversation has there.
#ifndef QLORA_PROMPT_MISSING_PROMPT_H_
#define QLORA_PROMPT_MISSING_PROMPT_H_

#include "prompt/chat_renderer.h"
#include "prompt/part_renderings.h"

namespace qlora {

// Templates of models that think write more in the prompt than in a conversation: a thought that is
// empty and closed, or the tag that opens one. `chat` renders the conversation of `parts`, and its
// turns are found.
//
//   prompt  <user>Hi</user><model><thought></thought>
//   text    <user>Hi</user><model>Hello</model>
//
// If the last message is an answer, a closed thought of the prompt is put before it, outside of the
// turn, as the model will read it there. An opened one would make the answer a thought: then a
// warning says so.
void CompletePrompt(PartRenderings& parts, RenderedChat& chat);

}  // namespace qlora

#endif  // QLORA_PROMPT_MISSING_PROMPT_H_
