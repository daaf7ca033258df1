#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "serve/api_error.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/foreign_fields.h"
#include "serve/requests/tool_choice.h"

namespace qlora {
namespace {

[[noreturn]] void RefuseBlock(const RequestFields& block, const std::string& type) {
  block.Refuse("type", fmt::format("this model reads no '{}' here", FirstBytes(type, 60)));
}

std::string TextOf(const RequestFields& fields, std::string_view name) {
  return JoinedText(fields, name, [](const RequestFields& block, const std::string& type) {
    if (type != "text") RefuseBlock(block, type);
    return block.NeedText("text");
  });
}

// Chat templates have no field that says that a tool failed.
std::string ResultOf(const RequestFields& block) {
  const std::string text = block.Has("content") ? TextOf(block, "content") : "";
  return block.Bool("is_error").value_or(false) ? "Error: " + text : text;
}

// Results of tools are messages of their own, before the text beside them.
void ReadUser(const RequestFields& message, CallIds& calls, OrderedJson& messages) {
  const OrderedJson* content = message.Find("content");
  if (content == nullptr || !content->is_array()) {
    messages.push_back({{"role", "user"}, {"content", TextOf(message, "content")}});
    return;
  }
  std::optional<std::string> text;
  for (std::int64_t i = 0; i < std::ssize(*content); ++i) {
    const RequestFields block((*content)[i], ItemPath(message.PathOf("content"), i));
    const std::string type = block.NeedText("type");
    if (type == "text") {
      text = text.value_or("") + block.NeedText("text");
    } else if (type == "tool_result") {
      const std::string id = block.NeedText("tool_use_id");
      calls.CheckResult(messages, id, block.PathOf("tool_use_id"));
      messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", ResultOf(block)}});
    } else {
      RefuseBlock(block, type);
    }
  }
  if (!text && content->empty()) message.Refuse("content", "has no blocks");
  if (text) messages.push_back({{"role", "user"}, {"content", *text}});
}

OrderedJson ReadAssistant(const RequestFields& message) {
  OrderedJson answer = {{"role", "assistant"}, {"content", nullptr}};
  const OrderedJson* content = message.Find("content");
  if (content == nullptr || !content->is_array()) {
    answer["content"] = TextOf(message, "content");
    return answer;
  }
  std::string text;
  std::string thought;
  for (std::int64_t i = 0; i < std::ssize(*content); ++i) {
    const RequestFields block((*content)[i], ItemPath(message.PathOf("content"), i));
    const std::string type = block.NeedText("type");
    if (type == "text") {
      text += block.NeedText("text");
    } else if (type == "thinking") {
      thought += block.NeedText("thinking");
    } else if (type == "tool_use") {
      answer["tool_calls"].push_back(
          {{"id", block.NeedText("id")},
           {"type", "function"},
           {"function",
            {{"name", block.NeedText("name")}, {"arguments", block.NeedObject("input").json()}}}});
    } else if (type != "redacted_thinking") {  // which only its maker can read
      RefuseBlock(block, type);
    }
  }
  if (!text.empty() || !answer.contains("tool_calls")) answer["content"] = text;
  if (!thought.empty()) answer["reasoning_content"] = thought;
  return answer;
}

void ReadMessages(const RequestFields& body, ConversationRequest& request) {
  const OrderedJson& list = body.NeedList("messages", 1, kMostMessages);
  CallIds calls;
  for (std::int64_t i = 0; i < std::ssize(list); ++i) {
    const RequestFields message(list[i], ItemPath(body.PathOf("messages"), i));
    RefuseForeignInMessage(message);
    const std::string role = message.NeedText("role");
    if (role == "user") {
      ReadUser(message, calls, request.messages);
    } else if (role == "system") {
      request.messages.push_back({{"role", "system"}, {"content", TextOf(message, "content")}});
    } else if (role == "assistant") {
      request.messages.push_back(ReadAssistant(message));
    } else {
      message.Refuse("role", fmt::format("expected user, assistant or system, found '{}'",
                                         FirstBytes(role, 60)));
    }
  }
  // The answer goes on with what the assistant has begun.
  OrderedJson& last = request.messages.back();
  if (last["role"] != "assistant") return;
  if (last.contains("tool_calls") || last["content"].get_ref<const std::string&>().empty()) {
    body.Refuse("messages", "the last message is an answer that is complete; expected one of user");
  }
  request.begin = last["content"].get<std::string>();
  request.messages.erase(request.messages.size() - 1);
  if (request.messages.empty()) body.Refuse("messages", "there is nothing to answer");
}

OrderedJson ReadTool(const RequestFields& tool) {
  const std::string type = tool.Text("type").value_or("custom");
  if (type != "custom") {
    tool.Refuse("type",
                fmt::format("expected custom; '{}' is not offered here", FirstBytes(type, 60)));
  }
  if (!tool.Has("input_schema")) tool.Refuse("input_schema", "is missing");
  return ToolOf(tool, "input_schema");
}

void ReadThinking(const RequestFields& body, const ServedModel& model,
                  ConversationRequest& request) {
  const std::optional<RequestFields> thinking = body.Object("thinking");
  if (!thinking) return;
  const std::string type = thinking->NeedText("type");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    thinking->Refuse("type", fmt::format("expected enabled, adaptive or disabled, found '{}'",
                                         FirstBytes(type, 60)));
  }
  if (type != "adaptive") SetThinking(type == "enabled", model, request);
}

// What would change the answer.
void RefuseOthers(const RequestFields& body) {
  // Whose client goes on without, where it may.
  if (body.Has("thread")) {
    throw ApiError(400, "thread: no conversations are kept here; send all messages, without it",
                   "thread", kNoThreads);
  }
  constexpr const char* kNotHere = "is not offered here; leave it out";
  for (const char* name : {"compaction", "container"}) {
    if (body.Has(name)) body.Refuse(name, kNotHere);
  }
  const OrderedJson* models = body.Find("fallbacks");
  if (models != nullptr && models->is_array() && !models->empty()) {
    body.Refuse("fallbacks", kNotHere);
  }
  if (const auto context = body.Object("context_management")) {
    const OrderedJson* edits = context->List("edits");
    if (edits != nullptr && !edits->empty()) context->Refuse("edits", kNotHere);
  }
  if (const OrderedJson* servers = body.List("mcp_servers"); servers && !servers->empty()) {
    body.Refuse("mcp_servers", "no servers of tools are asked here; leave it out");
  }
  RefuseForeign(body, {"messages", "tools", "max_tokens", "stop_sequences", "system", "thinking"});
}

}  // namespace

ConversationRequest ReadMessageRequest(const RequestFields& body, const ServedModel& model) {
  RefuseOthers(body);
  ConversationRequest request;
  request.schema_path = "input_schema";
  if (body.Has("system")) {
    const std::string system = TextOf(body, "system");
    if (!system.empty()) request.messages.push_back({{"role", "system"}, {"content", system}});
  }
  ReadMessages(body, request);
  ReadTools(body, request, ReadTool);
  const std::optional<RequestFields> output = body.Object("output_config");
  // What `thinking` says comes after what an effort implies.
  if (output) ReadEffort(*output, "effort", model, request);
  ReadThinking(body, model, request);
  RefuseOtherForms(body, "output_config.format");
  request.format = ReadAnswerFormat(body, "output_format", model);
  if (output && output->Has("format")) request.format = ReadAnswerFormat(*output, "format", model);
  return request;
}

}  // namespace qlora
