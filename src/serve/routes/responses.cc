// POST /v1/responses: OpenAI's interface of items, without a memory.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "serve/request_fields.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/sampling_fields.h"
#include "serve/routes/parted_answer.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

using Kind = AnswerPart::Kind;

OrderedJson FieldOr(const RequestFields& body, std::string_view name, OrderedJson other) {
  const OrderedJson* value = body.Find(name);
  return value == nullptr ? std::move(other) : *value;
}

// The response before its answer, with the fields of the request.
OrderedJson NewResponse(const std::string& id, const std::string& model, const RequestFields& body,
                        const GenerationRequest& generation) {
  OrderedJson text = FieldOr(body, "text", OrderedJson::object());
  if (!text.contains("format") || text["format"].is_null()) text["format"] = {{"type", "text"}};
  OrderedJson reasoning = FieldOr(body, "reasoning", OrderedJson::object());
  for (const char* name : {"effort", "summary"}) {
    if (!reasoning.contains(name)) reasoning[name] = nullptr;
  }
  const GenerateOptions& options = generation.options;
  return {{"id", "resp_" + id},
          {"object", "response"},
          {"created_at", static_cast<std::int64_t>(std::time(nullptr))},
          {"status", "in_progress"},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", FieldOr(body, "instructions", nullptr)},
          {"max_output_tokens", FieldOr(body, "max_output_tokens", nullptr)},
          {"max_tool_calls", FieldOr(body, "max_tool_calls", nullptr)},
          {"metadata", FieldOr(body, "metadata", OrderedJson::object())},
          {"model", model},
          {"output", OrderedJson::array()},
          {"parallel_tool_calls", FieldOr(body, "parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", std::move(reasoning)},
          {"service_tier", "default"},
          {"store", false},
          {"temperature", options.do_sample ? options.temperature : 0.0},
          {"text", std::move(text)},
          {"tool_choice", FieldOr(body, "tool_choice", "auto")},
          {"tools", FieldOr(body, "tools", OrderedJson::array())},
          {"top_logprobs", 0},
          {"top_p", options.top_p},
          {"truncation", FieldOr(body, "truncation", "disabled")},
          {"usage", nullptr},
          {"user", FieldOr(body, "user", nullptr)}};
}

class ResponseAnswer final : public PartedAnswer {
 public:
  ResponseAnswer(Server& server, HttpReplyPtr reply, const ServedModel& model,
                 const ConversationRequest& request, const ConversationPrompt& prompt,
                 const std::string& id, OrderedJson response, bool streams)
      : PartedAnswer(server, std::move(reply), model, request, prompt, "resp_" + id, streams),
        id_(id),
        response_(std::move(response)),
        tokenizer_(model.tokenizer) {
    held().Add(BytesOfJson(response_), "", kShorterConversation);
  }

 protected:
  void Begin() override {
    if (!streams_) return;
    // Two events have all of it, the last one once more.
    stream_.emplace(reply(), RoomFor(2 * FormatJson(response_).size()));
    Send("response.created", {{"response", response_}});
    Send("response.in_progress", {{"response", response_}});
  }

  void AddPart(const AnswerPart& part) override {
    switch (part.kind) {
      case Kind::kThought:
        BeginText("reasoning");
        thought_ += part.text;
        AddDelta("response.reasoning_text.delta", part.text);
        break;
      case Kind::kText:
        BeginText("message");
        AddDelta("response.output_text.delta", part.text);
        break;
      case Kind::kCallBegin:
        EndItem("completed");
        BeginItem({{"type", "function_call"},
                   {"id", ItemId("fc_")},
                   {"call_id", ItemId("call_")},
                   {"name", part.text},
                   {"arguments", ""},
                   {"status", "in_progress"}});
        break;
      case Kind::kCallArguments:
        text_ += part.text;
        Send("response.function_call_arguments.delta", Place({{"delta", part.text}}));
        break;
      case Kind::kCallEnd:
        // What cut a call is known at the end of the answer.
        if (!part.is_cut) EndItem("completed");
        break;
    }
  }

  void EndAnswer(const GenerationEnd& end) override {
    const bool is_cut =
        end.reason == StopReason::kMaxNewTokens || end.reason == StopReason::kContext;
    const char* status = is_cut ? "incomplete" : "completed";
    if (item_.is_null() && response_["output"].empty() && !is_cut) BeginText("message");
    EndItem(status);
    response_["status"] = status;
    if (is_cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    // Thoughts have no tokens of their own where they leave; their text has.
    const std::int64_t thought_tokens =
        thought_.empty() ? 0 : std::ssize(tokenizer_->Encode(thought_, false));
    response_["usage"] = {
        {"input_tokens", end.prompt_tokens},
        {"input_tokens_details", {{"cached_tokens", end.cached_tokens}, {"cache_write_tokens", 0}}},
        {"output_tokens", end.new_tokens},
        {"output_tokens_details", {{"reasoning_tokens", std::min(thought_tokens, end.new_tokens)}}},
        {"total_tokens", end.prompt_tokens + end.new_tokens}};
    LeaveWith(std::string("response.") + status);
  }

  void Fail(const ApiError& error) override {
    if (!stream_) return reply()->Send(OpenAiError(error));
    response_["status"] = "failed";
    const char* code = error.status == 429  ? "rate_limit_exceeded"
                       : error.status < 500 ? "invalid_prompt"
                                            : "server_error";
    response_["error"] = {{"code", code}, {"message", error.message}};
    LeaveWith("response.failed");
  }

 private:
  void LeaveWith(const std::string& event) {
    if (!stream_) return SendWhole({.body = FormatJson(response_)});
    Send(event, {{"response", response_}});
    stream_->End();
  }

  std::string ItemId(std::string_view prefix) const {
    return fmt::format("{}{}_{}", prefix, id_, response_["output"].size());
  }

  void Send(const std::string& type, const OrderedJson& fields) {
    if (!stream_) return;
    OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    stream_->Event(type, FormatJson(event));
  }

  // With the item, and the part of it, that an event is about.
  OrderedJson Place(OrderedJson fields) const {
    OrderedJson event = {{"item_id", item_["id"]}, {"output_index", response_["output"].size()}};
    if (HasPart()) event["content_index"] = 0;
    event.update(fields);
    return event;
  }

  bool HasPart() const { return item_["type"] != "function_call"; }
  OrderedJson Part() const {
    if (item_["type"] == "reasoning") return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
  }

  void BeginItem(OrderedJson item) {
    item_ = std::move(item);
    text_.clear();
    Send("response.output_item.added",
         {{"output_index", response_["output"].size()}, {"item", item_}});
    if (HasPart()) Send("response.content_part.added", Place({{"part", Part()}}));
  }

  // An item of this type, unless the last one is.
  void BeginText(const std::string& type) {
    if (!item_.is_null() && item_["type"] == type) return;
    EndItem("completed");
    OrderedJson item = {{"type", type},
                        {"id", ItemId(type == "message" ? "msg_" : "rs_")},
                        {"status", "in_progress"}};
    item[type == "message" ? "role" : "summary"] =
        type == "message" ? OrderedJson("assistant") : OrderedJson::array();
    item["content"] = OrderedJson::array();
    BeginItem(std::move(item));
  }

  void AddDelta(const std::string& type, const std::string& text) {
    text_ += text;
    OrderedJson fields = {{"delta", text}};
    if (item_["type"] == "message") fields["logprobs"] = OrderedJson::array();
    Send(type, Place(std::move(fields)));
  }

  void EndItem(const char* status) {
    if (item_.is_null()) return;
    if (item_["type"] == "function_call") {
      item_["arguments"] = text_;
      Send("response.function_call_arguments.done",
           Place({{"name", item_["name"]}, {"arguments", text_}}));
    } else {
      const bool is_message = item_["type"] == "message";
      OrderedJson fields = {{"text", text_}};
      if (is_message) fields["logprobs"] = OrderedJson::array();
      Send(is_message ? "response.output_text.done" : "response.reasoning_text.done",
           Place(std::move(fields)));
      Send("response.content_part.done", Place({{"part", Part()}}));
      item_["content"].push_back(Part());
    }
    item_["status"] = status;
    Send("response.output_item.done",
         {{"output_index", response_["output"].size()}, {"item", item_}});
    response_["output"].push_back(std::exchange(item_, nullptr));
  }

  const std::string id_;
  OrderedJson response_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::int64_t sequence_ = 0;
  OrderedJson item_;  // that is being written, or null
  std::string text_;  // of the item
  std::string thought_;
};

void AnswerResponse(Server& server, const HttpRequest& http, const HttpReplyPtr& reply) {
  const OrderedJson json = ParseBody(http);
  const RequestFields body(json);
  const ServedModelPtr model = server.models.Find(body.Text("model").value_or(""));
  const bool streams = body.Bool("stream").value_or(false);
  const ConversationRequest request = ReadResponseRequest(body, *model);
  GenerationRequest generation;
  ReadSampling(body, *model, generation);
  const std::int64_t most =
      server.options.max_new_tokens > 0 ? server.options.max_new_tokens : model->context_length;
  generation.options.max_new_tokens = body.Integer("max_output_tokens", 1).value_or(most);
  const ConversationPrompt prompt = AskConversation(model, request, generation);
  generation.is_whole = EndOfOneCall(*model, request, prompt);
  NoteAnswer(*reply, model->name, fmt::format("seed {}", generation.options.seed));
  OrderedJson response = NewResponse(http.id, model->name, body, generation);
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(generation));
  std::make_shared<ResponseAnswer>(server, reply, *model, request, prompt, http.id,
                                   std::move(response), streams)
      ->Start(std::move(requests), 1);
}

}  // namespace

void AddResponseRoutes(RouteTable& table, Server& server) {
  table.Add("POST", "/v1/responses", [&server](const HttpRequest& request, HttpReplyPtr reply) {
    AnswerResponse(server, request, reply);
  });
}

}  // namespace qlora
