// The answers of one request, which are written at the same time: choices, of one prompt or more.
#ifndef QLORA_SERVE_ROUTES_CHOICE_SET_H_
#define QLORA_SERVE_ROUTES_CHOICE_SET_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "io/json_fwd.h"
#include "serve/api_error.h"
#include "serve/generation_service.h"
#include "serve/http/event_stream.h"
#include "serve/http_server.h"
#include "serve/request_room.h"
#include "serve/served_models.h"
#include "serve/server.h"

namespace qlora {

struct AnswerUsage {
  std::int64_t prompt_tokens = 0;  // once for all choices of a prompt
  std::int64_t cached_tokens = 0;
  std::int64_t new_tokens = 0;  // of all choices
};
// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
OrderedJson UsageJson(const AnswerUsage& usage);

// Refuses `n` answers to each of so many prompts where the service never has room for them, which
// waiting would not change. Errors: ApiError 400.
void CheckAnswers(const GenerationService& service, std::int64_t prompts, std::int64_t n);

// "stop", "length".
const char* FinishReason(StopReason reason);

// The functions of a class that derives from this are called one at a time.
class ChoiceSet : public std::enable_shared_from_this<ChoiceSet> {
 public:
  // streams: answers are sent as they are written.
  ChoiceSet(Server& server, HttpReplyPtr reply, const ServedModel& model, bool streams)
      : streams_(streams),
        server_(server),
        reply_(std::move(reply)),
        held_(std::make_shared<HeldBytes>(model.room)) {}
  virtual ~ChoiceSet() = default;
  ChoiceSet(const ChoiceSet&) = delete;
  ChoiceSet& operator=(const ChoiceSet&) = delete;

  // Submits all requests, `choices` of each prompt in turn. They end when the client is gone.
  // Errors: as Submit, and as HeldBytes; then none is written, and nothing was sent.
  void Start(std::vector<GenerationRequest> requests, std::int64_t choices);

 protected:
  // All requests are taken. Opens the stream where there is one.
  virtual void Begin() = 0;
  // Errors: ApiError, which ends all of them.
  virtual void Add(std::int64_t i, GenerationPiece piece) = 0;
  virtual void End(std::int64_t i, const GenerationEnd& end) = 0;
  // All answers have ended.
  virtual void Finish(const AnswerUsage& usage) = 0;
  // An error ended them.
  virtual void Fail(const ApiError& error) = 0;
  // The client is gone, and a stream ends here. What the client saw of it may still be marked where
  // the server keeps conversations.
  virtual void Leave() = 0;

  Server& server() const { return server_; }
  const HttpReplyPtr& reply() const { return reply_; }
  // What all answers hold; texts that come are counted here.
  HeldBytes& held() { return *held_; }
  // For a stream with large events of so many bytes, which are counted. Errors: as HeldBytes.
  HttpRoom RoomFor(std::size_t bytes);
  // Sends all answers as one body. Errors: as HeldBytes.
  void SendWhole(HttpResponse response);

  const bool streams_;
  std::optional<EventStream> stream_;

 private:
  GenerationListener ListenerOf(std::int64_t i);
  template <typename Work>
  void RunUnlessEnded(const Work& work);
  void EndOne(std::int64_t i, const GenerationEnd& end);
  void EndAll(const ApiError& error);
  void CancelAll();

  Server& server_;
  HttpReplyPtr reply_;
  std::shared_ptr<HeldBytes> held_;  // until the client has all
  std::mutex mutex_;
  std::vector<GenerationId> ids_;
  std::int64_t choices_ = 1;
  std::int64_t open_ = 0;
  bool has_ended_ = false;
  AnswerUsage usage_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_CHOICE_SET_H_
