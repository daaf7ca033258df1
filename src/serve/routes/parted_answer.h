// One answer of a request as its parts.
#ifndef QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
#define QLORA_SERVE_ROUTES_PARTED_ANSWER_H_

#include <string>
#include <utility>
#include <vector>

#include "serve/answer_parts.h"
#include "serve/request_log.h"
#include "serve/requests/conversation_request.h"
#include "serve/routes/choice_set.h"
#include "serve/routes/parted_message.h"

namespace qlora {

// After Begin come AddPart for each part and EndAnswer, which says all that the client gets, or
// Fail.
class PartedAnswer : public ChoiceSet {
 public:
  // id: that clients get, under which the answer is kept where the server keeps conversations.
  // Errors: as HeldBytes.
  PartedAnswer(Server& server, HttpReplyPtr reply, const ServedModel& model,
               const ConversationRequest& request, const ConversationPrompt& prompt, std::string id,
               bool streams)
      : ChoiceSet(server, std::move(reply), model, streams),
        parts_(PartsOf(model, request, prompt)),
        id_(std::move(id)) {
    const bool is_kept = server.request_log != nullptr;
    held().Add(BytesHeldOf(request, is_kept), "", kShorterConversation);
    if (is_kept) question_ = QuestionOf(request);
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
