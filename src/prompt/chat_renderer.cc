#include "prompt/chat_renderer.h"

#include "prompt/conversation.h"

namespace qlora {

RenderedChat ChatRenderer::RenderConversation(const Conversation& conversation) const {
  return Render(conversation.messages, conversation.tools);
}

bool ChatRenderer::ReadsVariable(std::string_view /*name*/) const { return false; }

}  // namespace qlora
