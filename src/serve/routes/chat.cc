// POST /v1/chat/completions.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "serve/request_log.h"
#include "serve/requests/chat_request.h"
#include "serve/requests/sampling_fields.h"
#include "serve/routes/completion_set.h"
#include "serve/routes/logprob_json.h"
#include "serve/routes/parted_message.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

// What one choice has become so far.
struct ChatChoice {
  ChatChoice(AnswerParts made, std::string call_ids)
      : parts(std::move(made)), message(std::move(call_ids)) {}

  AnswerParts parts;
  PartedMessage message;
  std::string logprobs = {};  // items of a list
  std::string finish_reason = {};
};

class ChatAnswer final : public CompletionSet {
 public:
  ChatAnswer(Server& server, HttpReplyPtr reply, ChatRequest request, const std::string& id)
      : CompletionSet(server, std::move(reply), *request.model, request.answers, "chatcmpl-" + id,
                      request.answers.streams ? "chat.completion.chunk" : "chat.completion"),
        request_(std::move(request)) {
    for (std::int64_t i = 0; i < request_.answers.choices; ++i) {
      choices_.emplace_back(PartsOf(*request_.model, request_.conversation, request_.prompt),
                            fmt::format("call_{}_{}_", id, i));
    }
    const bool is_kept = server.request_log != nullptr;
    held().Add(BytesHeldOf(request_.conversation, is_kept), "messages", kShorterConversation);
    // Nothing else reads them, and many requests wait.
    request_.prompt = {};
    if (!is_kept) request_.conversation = {};
  }

 protected:
  void Begin() override {
    if (!streams_) return;
    stream_.emplace(reply());
    for (std::int64_t i = 0; i < std::ssize(choices_); ++i) {
      SendDelta(i, {{"role", "assistant"}, {"content", ""}}, nullptr);
    }
  }

  void Add(std::int64_t i, GenerationPiece piece) override {
    ChatChoice& choice = choices_[i];
    OrderedJson logprobs = nullptr;
    if (!piece.tokens.empty()) logprobs = ChatLogprobs(piece.tokens, *request_.model->tokenizer);
    AddParts(i, choice.parts.Add(piece.text), std::move(logprobs));
  }

  void End(std::int64_t i, const GenerationEnd& end) override {
    ChatChoice& choice = choices_[i];
    AddParts(i, choice.parts.Finish(), nullptr);
    choice.finish_reason = FinishReason(end.reason);
    // A call that a stop text cut cannot be made; one that its model does not close can.
    const bool can_call = end.reason == StopReason::kEos || !choice.message.is_cut();
    if (choice.finish_reason == "stop" && !choice.message.calls().empty() && can_call) {
      choice.finish_reason = "tool_calls";
    }
    if (stream_) SendDelta(i, OrderedJson::object(), nullptr, choice.finish_reason);
  }

  void Leave() override {
    for (ChatChoice& choice : choices_) {
      if (!choice.finish_reason.empty()) continue;
      for (const AnswerPart& part : choice.parts.Finish()) choice.message.Add(part);
    }
    CompletionSet::Leave();
  }

  std::vector<std::string> Whole() override {
    std::vector<std::string> texts;
    for (ChatChoice& choice : choices_) {
      OrderedJson message = choice.message.json();
      message["refusal"] = nullptr;
      std::string logprobs = "null";
      if (request_.generation.top_logprobs) {
        logprobs =
            fmt::format(R"({{"content":[{}],"refusal":null}})", std::exchange(choice.logprobs, {}));
      }
      texts.push_back(ChoiceText(std::ssize(texts), "message", std::move(message), logprobs,
                                 choice.finish_reason));
    }
    return texts;
  }

  LoggedQuestion Question() override { return QuestionOf(request_.conversation); }
  std::vector<LoggedAnswer> Answers() override {
    std::vector<LoggedAnswer> answers;
    for (const ChatChoice& choice : choices_) {
      answers.push_back(
          {.message = choice.message.json(),
           .is_whole = !choice.finish_reason.empty() && choice.finish_reason != "length"});
    }
    return answers;
  }

 private:
  void AddParts(std::int64_t i, const std::vector<AnswerPart>& parts, OrderedJson logprobs) {
    ChatChoice& choice = choices_[i];
    for (const AnswerPart& part : parts) {
      choice.message.Add(part);
      if (!stream_ || part.kind == AnswerPart::Kind::kCallEnd) continue;
      SendDelta(i, DeltaOf(choice.message, part), AsContent(std::exchange(logprobs, nullptr)));
    }
    if (logprobs.is_null()) return;
    if (stream_) {
      SendDelta(i, {{"content", ""}}, AsContent(std::move(logprobs)));
    } else {
      const std::size_t before = choice.logprobs.size();
      AppendItems(logprobs, choice.logprobs);
      // Once more where the answer is put together.
      held().Add(2 * (choice.logprobs.size() - before), "top_logprobs", kFewerLogprobs);
    }
  }

  // message: with the part, which is no end of a call.
  static OrderedJson DeltaOf(const PartedMessage& message, const AnswerPart& part) {
    if (part.kind == AnswerPart::Kind::kThought) return {{"reasoning_content", part.text}};
    if (part.kind == AnswerPart::Kind::kText) return {{"content", part.text}};
    OrderedJson call = {{"index", part.call}};
    if (part.kind == AnswerPart::Kind::kCallBegin) {
      call.update(message.calls().back());
    } else {
      call["function"] = {{"arguments", part.text}};
    }
    return {{"tool_calls", OrderedJson::array({std::move(call)})}};
  }

  static OrderedJson AsContent(OrderedJson logprobs) {
    if (logprobs.is_null()) return nullptr;
    return {{"content", std::move(logprobs)}, {"refusal", nullptr}};
  }

  void SendDelta(std::int64_t i, OrderedJson delta, OrderedJson logprobs,
                 const std::string& finish_reason = {}) {
    SendChoice(i, "delta", std::move(delta), std::move(logprobs), finish_reason);
  }

  ChatRequest request_;
  std::vector<ChatChoice> choices_;
};

}  // namespace

void AddChatRoutes(RouteTable& table, Server& server) {
  table.Add("POST", "/v1/chat/completions", [&server](const HttpRequest& http, HttpReplyPtr reply) {
    const OrderedJson json = ParseBody(http);
    ChatRequest request = ReadChat(RequestFields(json), server.models, server.options);
    CheckAnswers(server.generation, 1, request.answers.choices);
    NoteAnswer(*reply, request.model->name,
               fmt::format("seed {}", request.generation.options.seed));
    std::vector<GenerationRequest> requests;
    for (std::int64_t i = 0; i < request.answers.choices; ++i) {
      GenerationRequest& one = requests.emplace_back(request.generation);
      one.options.seed = ChoiceSeed(one.options.seed, i);
      one.is_whole = EndOfOneCall(*request.model, request.conversation, request.prompt);
    }
    const std::int64_t choices = request.answers.choices;
    std::make_shared<ChatAnswer>(server, std::move(reply), std::move(request), http.id)
        ->Start(std::move(requests), choices);
  });
}

}  // namespace qlora
