// Choices in OpenAI's form, as one body or as chunks: of chat completions, and of completions.
#ifndef QLORA_SERVE_ROUTES_COMPLETION_SET_H_
#define QLORA_SERVE_ROUTES_COMPLETION_SET_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/request_log.h"
#include "serve/requests/sampling_fields.h"
#include "serve/routes/choice_set.h"

namespace qlora {

class CompletionSet : public ChoiceSet {
 public:
  // id: that clients get. object: "chat.completion" ...
  CompletionSet(Server& server, HttpReplyPtr reply, const ServedModel& model,
                const AnswerFields& fields, const std::string& id, const std::string& object);

 protected:
  // The JSON of all choices, one after the other, which are not asked for again.
  virtual std::vector<std::string> Whole() = 0;
  // What the request log keeps.
  virtual LoggedQuestion Question() = 0;
  virtual std::vector<LoggedAnswer> Answers() = 0;

  void Finish(const AnswerUsage& usage) final;
  void Fail(const ApiError& error) final;
  void Leave() override { Keep(); }

  // Sends {"index", name: value, "logprobs", "finish_reason"}.
  void SendChoice(std::int64_t i, const char* name, OrderedJson value, OrderedJson logprobs,
                  const std::string& finish_reason = {});
  // The same of a whole choice; logprobs: JSON, which may be large.
  static std::string ChoiceText(std::int64_t i, const char* name, OrderedJson value,
                                const std::string& logprobs, const std::string& finish_reason);

 private:
  void Keep();

  const OrderedJson head_;
  const bool includes_usage_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_COMPLETION_SET_H_
