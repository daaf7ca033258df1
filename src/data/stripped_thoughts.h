// Answers whose thoughts a chat template leaves out.
#ifndef QLORA_DATA_STRIPPED_THOUGHTS_H_
#define QLORA_DATA_STRIPPED_THOUGHTS_H_

#include <cstddef>
#include <vector>

#include "prompt/chat_renderer.h"
#include "prompt/conversation.h"

namespace qlora {

// Many templates show the thoughts of the last answers alone. Without its thoughts an earlier
// answer is none that the model is ever asked for: it would learn to answer without thinking.
//
// Returns the messages of the trained answers whose thoughts `rendered`, which renders the
// conversation, leaves out, but would show if the conversation ended with them. Thoughts that the
// template never shows count as shown: then all answers are alike.
std::vector<std::size_t> FindStrippedThoughts(const ChatRenderer& chat,
                                              const Conversation& conversation,
                                              const RenderedChat& rendered);

}  // namespace qlora

#endif  // QLORA_DATA_STRIPPED_THOUGHTS_H_
