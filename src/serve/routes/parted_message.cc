#include "serve/routes/parted_message.h"

namespace qlora {

void PartedMessage::Add(const AnswerPart& part) {
  is_cut_ = part.is_cut;
  switch (part.kind) {
    case AnswerPart::Kind::kThought:
      thought_ += part.text;
      break;
    case AnswerPart::Kind::kText:
      text_ += part.text;
      break;
    case AnswerPart::Kind::kCallBegin:
      calls_.push_back({{"id", call_ids_ + std::to_string(part.call)},
                        {"type", "function"},
                        {"function", {{"name", part.text}, {"arguments", ""}}}});
      break;
    case AnswerPart::Kind::kCallArguments:
      calls_.back()["function"]["arguments"].get_ref<std::string&>() += part.text;
      break;
    case AnswerPart::Kind::kCallEnd:
      break;
  }
}

OrderedJson PartedMessage::json() const {
  OrderedJson message = {{"role", "assistant"}, {"content", text_}};
  if (text_.empty() && !calls_.empty()) message["content"] = nullptr;
  if (!thought_.empty()) message["reasoning_content"] = thought_;
  if (!calls_.empty()) message["tool_calls"] = calls_;
  return message;
}

}  // namespace qlora
