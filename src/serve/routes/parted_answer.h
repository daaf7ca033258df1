// One answer of a request as its parts.
#ifndef QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
#define QLORA_SERVE_ROUTES_PARTED_ANSWER_H_

#include <utility>
#include <vector>

#include "serve/answer_parts.h"
#include "serve/routes/choice_set.h"

namespace qlora {

// After Begin come AddPart for each part and EndAnswer, which says all that the client gets, or
// Fail.
class PartedAnswer : public ChoiceSet {
 public:
  PartedAnswer(Server& server, HttpReplyPtr reply, AnswerParts parts)
      : ChoiceSet(server, std::move(reply)), parts_(std::move(parts)) {}

 protected:
  virtual void AddPart(const AnswerPart& part) = 0;
  virtual void EndAnswer(const GenerationEnd& end) = 0;

 private:
  void Add(std::int64_t, GenerationPiece piece) final { AddParts(parts_.Add(piece.text)); }
  void End(std::int64_t, const GenerationEnd& end) final {
    AddParts(parts_.Finish());
    EndAnswer(end);
  }
  void Finish(const AnswerUsage&) final {}

  void AddParts(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) AddPart(part);
  }

  AnswerParts parts_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_PARTED_ANSWER_H_
