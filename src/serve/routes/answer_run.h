// One answer from the engine to a client: its parts in order, whether they leave at once or whole.
#ifndef QLORA_SERVE_ROUTES_ANSWER_RUN_H_
#define QLORA_SERVE_ROUTES_ANSWER_RUN_H_

#include <memory>

#include "serve/answer_parts.h"
#include "serve/api_error.h"
#include "serve/generation_service.h"
#include "serve/http_server.h"

namespace qlora {

// What a route makes of an answer. Is called by one thread at a time: Begin, then Add for each
// part, then End or Fail.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // The request is taken.
  virtual void Begin() = 0;
  virtual void Add(const AnswerPart& part) = 0;
  virtual void End(const GenerationEnd& end) = 0;
  // A fault within the server.
  virtual void Fail(const ApiError& error) = 0;
};

// Submits the request, and hands the parts of its answer to the writer. When the client of `reply`
// leaves, the generation ends. generation must outlive the answer. Errors: those of Submit, before
// anything is written.
void RunAnswer(GenerationService& generation, GenerationRequest request, AnswerParts parts,
               std::shared_ptr<AnswerWriter> writer, const HttpReplyPtr& reply);

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_ANSWER_RUN_H_
