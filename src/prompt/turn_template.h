// Chat templates made of a few pieces of text: the built-in templates, and templates that show the
// layout of data that are not conversations.
#ifndef QLORA_PROMPT_TURN_TEMPLATE_H_
#define QLORA_PROMPT_TURN_TEMPLATE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/prompt_layout.h"

namespace qlora {

// The text around the messages of a conversation. In each piece "{content}" is the content of the
// message, "{system}" the content of the system message, "{bos}" and "{eos}" the texts of those
// tokens.
//
//   prefix [system] user answer_prompt answer user answer_prompt answer ...
struct TurnPieces {
  std::string prefix = {};
  std::string default_system = {};  // where the conversation has no system message
  std::string system = {};          // "": the system text is a part of the first user's message
  std::string user = {};
  std::string first_user = {};     // with a system text; "": as `user`
  std::string answer_prompt = {};  // before each answer
  std::string answer = {};
  bool trims = false;  // contents lose the white space around them
};

// Returns the template as Jinja, in the part of the language that every engine knows.
std::string ComposeTurnTemplate(const TurnPieces& pieces);

// Returns the pieces of the built-in template of this name, or nothing.
std::optional<TurnPieces> FindTurnPieces(std::string_view name);
std::vector<std::string_view> TurnPieceNames();

// Returns the pieces that show a layout which is not chat: a conversation of a prompt and an answer
// has the text that a record of the two has in training. Nothing when prompts need several fields.
// bos: the tokenizer puts BOS before a text. eos: answers end in EOS.
std::optional<TurnPieces> PiecesOfLayout(const RecordLayout& layout, bool bos, bool eos);

}  // namespace qlora

#endif  // QLORA_PROMPT_TURN_TEMPLATE_H_
