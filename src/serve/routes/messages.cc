// POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface of blocks.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "serve/answers/argument_text.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/sampling_fields.h"
#include "serve/routes/parted_answer.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

using Kind = AnswerPart::Kind;

class MessageAnswer final : public PartedAnswer {
 public:
  MessageAnswer(Server& server, HttpReplyPtr reply, const ServedModel& model,
                const ConversationRequest& request, const ConversationPrompt& prompt,
                const std::string& id, std::int64_t prompt_tokens, bool streams)
      : PartedAnswer(server, std::move(reply), model, request, prompt, "msg_" + id, streams),
        id_(id) {
    message_ = {{"id", "msg_" + id_},
                {"type", "message"},
                {"role", "assistant"},
                {"model", model.name},
                {"content", OrderedJson::array()},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr},
                {"stop_details", nullptr},
                {"container", nullptr},
                {"usage", Usage(prompt_tokens, 0)}};
  }

 protected:
  void Begin() override {
    if (!streams_) return;
    stream_.emplace(reply(), HttpRoom(), HttpHeaders{{"request-id", id_}});
    Send("message_start", {{"message", message_}});
  }

  void AddPart(const AnswerPart& part) override {
    switch (part.kind) {
      case Kind::kThought:
        BeginBlock("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        AddDelta({{"type", "thinking_delta"}, {"thinking", part.text}}, part.text);
        break;
      case Kind::kText:
        BeginBlock("text", {{"type", "text"}, {"text", ""}, {"citations", nullptr}});
        AddDelta({{"type", "text_delta"}, {"text", part.text}}, part.text);
        break;
      case Kind::kCallBegin:
        EndBlock();
        has_calls_ = true;
        BeginBlock("tool_use", {{"type", "tool_use"},
                                {"id", fmt::format("toolu_{}_{}", id_, part.call)},
                                {"name", part.text},
                                {"input", OrderedJson::object()},
                                {"caller", {{"type", "direct"}}}});
        break;
      case Kind::kCallArguments:
        AddDelta({{"type", "input_json_delta"}, {"partial_json", part.text}}, part.text);
        break;
      case Kind::kCallEnd:
        EndBlock();
        break;
    }
  }

  void EndAnswer(const GenerationEnd& end) override {
    EndBlock();
    const bool is_cut =
        end.reason == StopReason::kMaxNewTokens || end.reason == StopReason::kContext;
    const bool is_stopped = end.reason == StopReason::kStopText;
    message_["stop_reason"] = is_cut       ? "max_tokens"
                              : is_stopped ? "stop_sequence"
                              : has_calls_ ? "tool_use"
                                           : "end_turn";
    if (is_stopped) message_["stop_sequence"] = end.stop;
    message_["usage"] = Usage(end.prompt_tokens, end.new_tokens);
    if (!stream_) {
      return SendWhole({.body = FormatJson(message_), .headers = {{"request-id", id_}}});
    }
    OrderedJson delta = OrderedJson::object();
    for (const char* name : {"stop_reason", "stop_sequence", "stop_details", "container"}) {
      delta[name] = message_[name];
    }
    Send("message_delta", {{"delta", std::move(delta)}, {"usage", message_["usage"]}});
    Send("message_stop", OrderedJson::object());
    stream_->End();
  }

  void Fail(const ApiError& error) override {
    const HttpResponse response = AnthropicError(error, id_);
    if (!stream_) return reply()->Send(response);
    stream_->Event("error", response.body);
    stream_->End();
  }

 private:
  // All of the prompt is counted as read, so that the number is known at the start of a stream, and
  // is that of count_tokens.
  static OrderedJson Usage(std::int64_t prompt_tokens, std::int64_t new_tokens) {
    return {{"input_tokens", prompt_tokens},
            {"output_tokens", new_tokens},
            {"cache_creation_input_tokens", nullptr},
            {"cache_read_input_tokens", nullptr},
            {"cache_creation", nullptr},
            {"server_tool_use", nullptr},
            {"service_tier", "standard"}};
  }

  void Send(const std::string& type, const OrderedJson& fields) {
    if (!stream_) return;
    OrderedJson event = {{"type", type}};
    event.update(fields);
    stream_->Event(type, FormatJson(event));
  }
  std::size_t Index() const { return message_["content"].size(); }

  // A block of this type, unless the last one is.
  void BeginBlock(const char* type, OrderedJson block) {
    if (!block_.is_null() && block_["type"] == type) return;
    EndBlock();
    block_ = std::move(block);
    text_.clear();
    Send("content_block_start", {{"index", Index()}, {"content_block", block_}});
  }

  void AddDelta(const OrderedJson& delta, const std::string& text) {
    text_ += text;
    Send("content_block_delta", {{"index", Index()}, {"delta", delta}});
  }

  void EndBlock() {
    if (block_.is_null()) return;
    const std::string type = block_["type"];
    if (type == "tool_use") {
      block_["input"] = ParseOrderedJson(WholeArguments(text_), "arguments");
    } else {
      block_[type] = text_;
    }
    if (type == "thinking") {
      block_["signature"] = "qlora";
      AddDelta({{"type", "signature_delta"}, {"signature", "qlora"}}, "");
    }
    Send("content_block_stop", {{"index", Index()}});
    message_["content"].push_back(std::exchange(block_, nullptr));
  }

  const std::string id_;
  OrderedJson message_;
  OrderedJson block_;  // that is being written, or null
  std::string text_;   // of the block
  bool has_calls_ = false;
};

void AnswerMessage(Server& server, const HttpRequest& http, const HttpReplyPtr& reply) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const ServedModelPtr model = server.models.Find(body.NeedText("model"));
  const bool streams = body.Bool("stream").value_or(false);
  const std::optional<std::int64_t> most = body.Integer("max_tokens", 1);
  if (!most) body.Refuse("max_tokens", "is missing");
  const ConversationRequest request = ReadMessageRequest(body, *model);
  GenerationRequest generation;
  ReadSampling(body, *model, generation);
  body.List("stop_sequences");
  ReadStops(body, "stop_sequences", generation);
  const ConversationPrompt prompt = AskConversation(model, request, generation, "stop_sequences");
  generation.is_whole = EndOfOneCall(*model, request, prompt);
  const auto prompt_tokens = std::ssize(generation.prompt);
  generation.options.max_new_tokens = *most;
  NoteAnswer(*reply, model->name, fmt::format("seed {}", generation.options.seed));
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(generation));
  std::make_shared<MessageAnswer>(server, reply, *model, request, prompt, http.id, prompt_tokens,
                                  streams)
      ->Start(std::move(requests), 1);
}

void CountTokens(Server& server, const HttpRequest& http, const HttpReplyPtr& reply) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const ServedModelPtr model = server.models.Find(body.NeedText("model"));
  const ConversationRequest request = ReadMessageRequest(body, *model);
  const OrderedJson answer = {{"input_tokens", PromptOf(*model, request).tokens.size()}};
  reply->Send({.body = FormatJson(answer), .headers = {{"request-id", http.id}}});
}

}  // namespace

void AddMessageRoutes(RouteTable& table, Server& server) {
  table.Add("POST", "/v1/messages", [&server](const HttpRequest& request, HttpReplyPtr reply) {
    AnswerMessage(server, request, reply);
  });
  table.Add("POST", "/v1/messages/count_tokens",
            [&server](const HttpRequest& request, HttpReplyPtr reply) {
              CountTokens(server, request, reply);
            });
}

}  // namespace qlora
