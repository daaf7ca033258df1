#include "serve/requests/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "serve/answers/argument_text.h"
#include "serve/api_error.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/foreign_fields.h"
#include "serve/requests/tool_choice.h"

namespace qlora {
namespace {

std::string TextOf(const RequestFields& part, const std::string& type) {
  // What an answer that refused said is text, too.
  if (type != "text" && type != "refusal") {
    part.Refuse("type", fmt::format("parts of text are read here, not '{}'", FirstBytes(type, 60)));
  }
  return part.NeedText(type);
}

// Arguments are text in requests; templates read an object. Clients give back what a model wrote,
// also where that was cut, or is no JSON.
OrderedJson CallsOf(const RequestFields& message) {
  const OrderedJson* calls = message.List("tool_calls", 0, 128);
  OrderedJson list = OrderedJson::array();
  if (calls == nullptr) return list;
  for (std::int64_t i = 0; i < std::ssize(*calls); ++i) {
    const RequestFields call((*calls)[i], ItemPath(message.PathOf("tool_calls"), i));
    const RequestFields function = call.NeedObject("function");
    list.push_back({{"id", call.Text("id").value_or("")},
                    {"type", "function"},
                    {"function",
                     {{"name", function.NeedText("name")},
                      {"arguments", WholeArguments(function.Text("arguments").value_or(""))}}}});
  }
  return list;
}

OrderedJson MessageOf(const RequestFields& message, const OrderedJson& before,
                      CallIds& calls_before) {
  RefuseForeignInMessage(message);
  std::string role = message.NeedText("role");
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    message.Refuse("role", fmt::format("expected system, developer, user, assistant or tool"));
  }
  if (role == "developer") role = "system";
  OrderedJson made = {{"role", role}};
  OrderedJson calls = role == "assistant" ? CallsOf(message) : OrderedJson::array();
  if (message.Has("content")) {
    made["content"] = JoinedText(message, "content", TextOf);
  } else if (const auto refusal = message.Text("refusal"); refusal && role == "assistant") {
    made["content"] = *refusal;
  } else if (!calls.empty()) {
    made["content"] = nullptr;
  } else if (role == "assistant" && message.Has("reasoning_content")) {
    made["content"] = "";  // the answer was cut within its thought
  } else {
    message.Refuse("content", "is missing");
  }
  if (!calls.empty()) made["tool_calls"] = std::move(calls);
  if (const auto name = message.Text("name")) made["name"] = *name;
  if (role == "assistant") {
    for (const char* name : {"function_call", "audio"}) {
      if (message.Has(name)) message.Refuse(name, "is not read here; calls are tool_calls");
    }
    if (message.Bool("prefix").value_or(false)) {
      message.Refuse("prefix", "answers are not begun here; /v1/messages goes on with them");
    }
    if (const auto thought = message.Text("reasoning_content")) {
      made["reasoning_content"] = *thought;
    }
  }
  if (role == "tool") {
    const std::string id = message.NeedText("tool_call_id");
    calls_before.CheckResult(before, id, message.PathOf("tool_call_id"));
    made["tool_call_id"] = id;
  }
  return made;
}

void ReadMessages(const RequestFields& body, ConversationRequest& request) {
  const OrderedJson& messages = body.NeedList("messages", 1, kMostMessages);
  CallIds calls;
  for (std::int64_t i = 0; i < std::ssize(messages); ++i) {
    const RequestFields message(messages[i], ItemPath(body.PathOf("messages"), i));
    request.messages.push_back(MessageOf(message, request.messages, calls));
  }
}

OrderedJson ReadTool(const RequestFields& tool) {
  if (tool.NeedText("type") != "function") {
    tool.Refuse("type", "tools of type function are offered to the model, no others");
  }
  return ToolOf(tool.NeedObject("function"), "parameters");
}

// Fields that would change the answer, and are not known here.
void RefuseOthers(const RequestFields& body) {
  for (const char* name : {"functions", "function_call", "audio", "web_search_options"}) {
    if (body.Has(name)) body.Refuse(name, "is not offered here; leave it out");
  }
  const OrderedJson* modalities = body.List("modalities");
  if (modalities != nullptr && *modalities != OrderedJson::array({"text"})) {
    body.Refuse("modalities", "answers are text alone");
  }
  if (body.Text("reasoning_format").value_or("") == "none") {
    body.Refuse("reasoning_format", "thoughts are in reasoning_content here; leave it out");
  }
  RefuseForeign(body, {"messages", "tools", "max_tokens", "max_completion_tokens", "stop", "n",
                       "logprobs", "top_logprobs", "reasoning_effort", "chat_template_kwargs"});
}

}  // namespace

ConversationRequest ReadChatConversation(const RequestFields& body, const ServedModel& model) {
  ConversationRequest request;
  ReadMessages(body, request);
  ReadTools(body, request, ReadTool);
  RefuseOthers(body);
  ReadEffort(body, "reasoning_effort", model, request);
  ReadVariables(body, request);
  return request;
}

ChatRequest ReadChat(const RequestFields& body, const ServedModels& models,
                     const ServeOptions& options) {
  ChatRequest request;
  request.model = models.Find(body.Text("model").value_or(""));
  request.conversation = ReadChatConversation(body, *request.model);
  RefuseOtherForms(body, "response_format");
  request.conversation.format = ReadAnswerFormat(body, "response_format", *request.model);
  GenerationRequest& generation = request.generation;
  ReadSampling(body, *request.model, generation);
  ReadStops(body, "stop", generation);
  const std::int64_t unset = options.max_new_tokens > 0 ? options.max_new_tokens : kMostTokens;
  request.answers = ReadAnswerFields(body);
  generation.options.max_new_tokens = request.answers.max_new_tokens.value_or(unset);
  const auto top = body.Integer("top_logprobs", 0, 20);
  if (body.Bool("logprobs").value_or(false)) {
    generation.top_logprobs = top.value_or(0);
  } else if (top.value_or(0) > 0) {
    body.Refuse("top_logprobs", "needs \"logprobs\": true");
  }
  request.prompt = AskConversation(request.model, request.conversation, generation);
  return request;
}

}  // namespace qlora
