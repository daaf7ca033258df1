// One answer of a request as its parts.
#ifndef QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
#define QLORA_SERVE_ROUTES_PARTED_ANSWER_H_

#include <string>
#include <utility>
#include <vector>

#include "serve/answer_parts.h"
#include "serve/request_log.h"
#include "serve/routes/choice_set.h"

namespace qlora {

// After Begin come AddPart for each part and EndAnswer, which says all that the client gets, or
// Fail.
class PartedAnswer : public ChoiceSet {
 public:
  PartedAnswer(Server& server, HttpReplyPtr reply, AnswerParts parts)
      : ChoiceSet(server, std::move(reply)), parts_(std::move(parts)) {}

  // Has the answer kept under the id that clients get, where the server keeps conversations.
  void KeepAs(std::string id, LoggedQuestion question) {
    id_ = std::move(id);
    question_ = std::move(question);
  }

 protected:
  virtual void AddPart(const AnswerPart& part) = 0;
  virtual void EndAnswer(const GenerationEnd& end) = 0;

 private:
  void Add(std::int64_t, GenerationPiece piece) final { AddParts(parts_.Add(piece.text)); }
  void End(std::int64_t, const GenerationEnd& end) final {
    AddParts(parts_.Finish());
    if (server().request_log != nullptr) Keep(std::string(FinishReason(end.reason)) == "stop");
    EndAnswer(end);
  }
  void Leave() final {
    for (const AnswerPart& part : parts_.Finish()) AddToMessage(part);
    Keep(false);
  }
  void Finish(const AnswerUsage&) final {}

  void AddParts(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      if (server().request_log != nullptr) AddToMessage(part);
      AddPart(part);
    }
  }

  void AddToMessage(const AnswerPart& part) {
    using Kind = AnswerPart::Kind;
    if (part.kind == Kind::kText) text_ += part.text;
    if (part.kind == Kind::kThought) thought_ += part.text;
    if (part.kind == Kind::kCallBegin) {
      calls_.push_back({{"id", "call_" + std::to_string(part.call)},
                        {"type", "function"},
                        {"function", {{"name", part.text}, {"arguments", ""}}}});
    }
    if (part.kind == Kind::kCallArguments) {
      calls_.back()["function"]["arguments"].get_ref<std::string&>() += part.text;
    }
  }

  void Keep(bool is_whole) {
    OrderedJson message = {{"role", "assistant"}, {"content", text_}};
    if (text_.empty() && !calls_.empty()) message["content"] = nullptr;
    if (!thought_.empty()) message["reasoning_content"] = thought_;
    if (!calls_.empty()) message["tool_calls"] = calls_;
    server().request_log->Keep(id_, question_, {{.message = message, .is_whole = is_whole}});
  }

  AnswerParts parts_;
  // Of the request log.
  std::string id_;
  LoggedQuestion question_;
  std::string text_;
  std::string thought_;
  OrderedJson calls_ = OrderedJson::array();
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
