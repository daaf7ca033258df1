// One answer of a request as its parts.
#ifndef QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
#define QLORA_SERVE_ROUTES_PARTED_ANSWER_H_

#include <string>
#include <utility>
#include <vector>

#include "serve/answer_parts.h"
#include "serve/request_log.h"
#include "serve/routes/choice_set.h"
#include "serve/routes/parted_message.h"

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
    for (const AnswerPart& part : parts_.Finish()) message_.Add(part);
    Keep(false);
  }
  void Finish(const AnswerUsage&) final {}

  void AddParts(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      if (server().request_log != nullptr) message_.Add(part);
      AddPart(part);
    }
  }

  void Keep(bool is_whole) {
    server().request_log->Keep(id_, question_,
                               {{.message = message_.json(), .is_whole = is_whole}});
  }

  AnswerParts parts_;
  // Of the request log.
  std::string id_;
  LoggedQuestion question_;
  PartedMessage message_{"call_"};
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
