// Answers whose thoughts a template shows in the last answer alone.
#ifndef QLORA_DATA_AUDIT_STRIPPED_THOUGHTS_H_
#define QLORA_DATA_AUDIT_STRIPPED_THOUGHTS_H_

#include <cstddef>
#include <vector>

#include "prompt/rendered_conversation.h"

namespace qlora {

// Many templates show the thoughts of the last answers alone. Without its thoughts an earlier
// answer is none that the model is ever asked for: it would learn to answer without thinking.
//
// Returns the messages of the trained answers whose thoughts the text leaves out, but would show if
// the conversation ended with them. Thoughts that the template never shows are not among them: then
// all answers are alike.
std::vector<std::size_t> FindStrippedThoughts(RenderedConversation& chat);

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_STRIPPED_THOUGHTS_H_
