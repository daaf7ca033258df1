// The dialogue of `qlora chat`: commands and messages in, answers out.
#ifndef QLORA_CLI_CHAT_CHAT_SESSION_H_
#define QLORA_CLI_CHAT_CHAT_SESSION_H_

#include <memory>
#include <set>
#include <string>

#include "chat/chat_input.h"
#include "chat/dialogue.h"
#include "chat/line_reader.h"
#include "command/verb.h"
#include "qlora/model.h"
#include "terminal/interrupt.h"

namespace qlora {

class ChatSession {
 public:
  // plain: the conversation is plain text that the model continues, without a layout.
  // template_file: the chat template with which training reads a saved conversation as it was held;
  // "" where the model has the template.
  ChatSession(Model& model, const GenerateOptions& options, bool plain, std::string system,
              std::string template_file, const Console& console);

  // Until /exit, the end of the input, or an output that cannot be written. Errors: Interrupted for
  // a signal other than Ctrl+C of a person; InvalidInput when the template refuses the
  // conversation.
  void Run();

 private:
  // Reads lines until a command or a message is complete. Returns false at the end of the input.
  bool ReadInput(ChatLine& command, std::string& message);
  // Returns false when the command ends the session.
  bool Obey(const ChatLine& command);
  void SetSystem(const std::string& text);
  void Save(const std::string& name);
  // Returns false when the answer cannot be written.
  bool Answer(const std::string& message);
  PromptText Prompt() const;
  PromptText FittingPrompt();
  // After a signal that came while an answer was made, or at the prompt.
  void ContinueAfterSignal();

  Model& model_;
  GenerateOptions options_;
  bool plain_;
  std::string template_file_;
  const Console& console_;
  InterruptGuard guard_;
  std::unique_ptr<LineReader> reader_;
  Dialogue dialogue_;
  std::set<std::string> saved_;  // files that this session wrote
};

}  // namespace qlora

#endif  // QLORA_CLI_CHAT_CHAT_SESSION_H_
