// A chat template in the language of Modelfiles, which is that of Go's text/template.
//
// The template is known by what it renders, not by its text: a few conversations are rendered, the
// texts around the messages are taken for those of their roles, and the result counts where it
// gives what the template gives for all of them.
#ifndef QLORA_EXPORT_OLLAMA_TEMPLATE_H_
#define QLORA_EXPORT_OLLAMA_TEMPLATE_H_

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Where a chat template has the system message.
enum class SystemPlace {
  kNone,       // nowhere
  kOwn,        // before the first user, as a turn
  kFirstUser,  // in the turn of the first user, before the message
  kLastUser,   // likewise of the last
};

// The texts around messages, without a BOS that the tokenizer puts in front.
struct TurnTexts {
  std::string opening;  // without a system message
  SystemPlace place = SystemPlace::kNone;
  std::string before_system;  // of kOwn; of the others, behind before_user
  std::string after_system;
  std::string before_user;
  std::string after_user;
  std::string before_answer;
  std::string after_answer;
  std::string prompt;  // behind the last message, for the answer
};

struct OllamaTemplate {
  std::string text;                // "" where it cannot be written
  std::string turn_end;            // what the template ends an answer with, without white space
  std::vector<std::string> notes;  // why; or what the text lacks
};

// Of the tokenizer's chat template; empty where there is none.
OllamaTemplate OllamaTemplateOf(const Tokenizer& tokenizer);

// ---- Parts of it.

// A template of such turns.
std::string GoTemplate(const TurnTexts& turns);

}  // namespace qlora

#endif  // QLORA_EXPORT_OLLAMA_TEMPLATE_H_
