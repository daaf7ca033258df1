#include "serve/routes/completion_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/stopwatch.h"
#include "io/json.h"
#include "serve/routes/logprob_json.h"

namespace qlora {

CompletionSet::CompletionSet(Server& server, HttpReplyPtr reply, const ServedModel& model,
                             const AnswerFields& fields, const std::string& id,
                             const std::string& object)
    : ChoiceSet(server, std::move(reply), model, fields.streams),
      head_({{"id", id},
             {"object", object},
             {"created", SecondsSince1970()},
             {"model", model.name},
             {"system_fingerprint", model.fingerprint}}),
      includes_usage_(fields.includes_usage) {}

void CompletionSet::Finish(const AnswerUsage& usage) {
  if (server().request_log != nullptr) Keep();
  std::vector<std::string> choices;
  if (!stream_) choices = Whole();
  std::string answer = FormatJson(head_);
  AppendField(answer, "choices", fmt::format("[{}]", fmt::join(choices, ",")));
  AppendField(answer, "usage", FormatJson(UsageJson(usage)));
  if (!stream_) return SendWhole({.body = std::move(answer)});
  if (includes_usage_) stream_->Data(answer);
  stream_->Done();
}

void CompletionSet::Fail(const ApiError& error) {
  HttpResponse response = OpenAiError(error);
  if (!stream_) return reply()->Send(std::move(response));
  stream_->Data(response.body);
  stream_->End();
}

void CompletionSet::SendChoice(std::int64_t i, const char* name, OrderedJson value,
                               OrderedJson logprobs, const std::string& finish_reason) {
  OrderedJson choice = {{"index", i},
                        {name, std::move(value)},
                        {"logprobs", std::move(logprobs)},
                        {"finish_reason", nullptr}};
  if (!finish_reason.empty()) choice["finish_reason"] = finish_reason;
  OrderedJson chunk = head_;
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (includes_usage_) chunk["usage"] = nullptr;
  stream_->Data(FormatJson(chunk));
}

std::string CompletionSet::ChoiceText(std::int64_t i, const char* name, OrderedJson value,
                                      const std::string& logprobs,
                                      const std::string& finish_reason) {
  std::string text = FormatJson(OrderedJson{{"index", i}, {name, std::move(value)}});
  AppendField(text, "logprobs", logprobs);
  AppendField(text, "finish_reason", FormatJson(OrderedJson(finish_reason)));
  return text;
}

void CompletionSet::Keep() {
  server().request_log->Keep(head_["id"].get<std::string>(), Question(), Answers());
}

}  // namespace qlora
