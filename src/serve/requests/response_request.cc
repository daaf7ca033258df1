#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "serve/answers/argument_text.h"
#include "serve/api_error.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/foreign_fields.h"
#include "serve/requests/tool_choice.h"

namespace qlora {
namespace {

std::string TextOf(const RequestFields& item, std::string_view name) {
  return JoinedText(item, name, [](const RequestFields& part, const std::string& type) {
    const bool is_text = type == "input_text" || type == "output_text" || type == "text" ||
                         type == "reasoning_text" || type == "summary_text";
    if (!is_text && type != "refusal") {
      part.Refuse("type",
                  fmt::format("expected text; this model reads no '{}'", FirstBytes(type, 60)));
    }
    return part.NeedText(is_text ? "text" : "refusal");
  });
}

// Items of one answer of the assistant are one message: thoughts, text, calls.
class ItemReader {
 public:
  explicit ItemReader(OrderedJson& messages) : messages_(messages) {}

  void Add(const RequestFields& item) {
    const std::string type = item.Text("type").value_or("message");
    if (type == "message") {
      AddMessage(item);
    } else if (type == "reasoning") {
      AddThought(item);
    } else if (type == "function_call") {
      AddCall(item);
    } else if (type == "function_call_output") {
      AddResult(item);
    } else if (type == "item_reference") {
      item.Refuse("type", "no earlier items are kept here; give back the item itself");
    } else {
      item.Refuse("type", fmt::format("'{}' is no item that is read here; there are message, "
                                      "reasoning, function_call, function_call_output",
                                      FirstBytes(type, 60)));
    }
  }

  void End() {
    if (answer_.is_null()) return;
    // Beside calls alone a text may be missing.
    if (answer_["content"].is_null() && !answer_.contains("tool_calls")) answer_["content"] = "";
    messages_.push_back(std::exchange(answer_, nullptr));
  }

 private:
  void AddMessage(const RequestFields& item) {
    RefuseForeignInMessage(item);
    const std::string role = item.NeedText("role");
    if (role != "user" && role != "system" && role != "developer" && role != "assistant") {
      item.Refuse("role", fmt::format("expected user, assistant, system or developer, found '{}'",
                                      FirstBytes(role, 60)));
    }
    std::string text = TextOf(item, "content");
    if (role == "assistant") {
      if (Answer().contains("tool_calls") || !Answer()["content"].is_null()) End();
      Answer()["content"] = std::move(text);
      return;
    }
    End();
    messages_.push_back({{"role", role == "developer" ? "system" : role}, {"content", text}});
  }

  void AddThought(const RequestFields& item) {
    std::string text;
    if (item.Has("content")) text = TextOf(item, "content");
    if (text.empty() && item.Has("summary")) text = TextOf(item, "summary");
    End();
    if (!text.empty()) Answer()["reasoning_content"] = std::move(text);
  }

  void AddCall(const RequestFields& item) {
    OrderedJson call = {{"id", item.NeedText("call_id")},
                        {"type", "function"},
                        // As of chat completions.
                        {"function",
                         {{"name", item.NeedText("name")},
                          {"arguments", WholeArguments(item.NeedText("arguments"))}}}};
    Answer()["tool_calls"].push_back(std::move(call));
  }

  void AddResult(const RequestFields& item) {
    End();
    const std::string id = item.NeedText("call_id");
    calls_.CheckResult(messages_, id, item.PathOf("call_id"));
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", TextOf(item, "output")}});
  }

  OrderedJson& Answer() {
    if (answer_.is_null()) answer_ = {{"role", "assistant"}, {"content", nullptr}};
    return answer_;
  }

  OrderedJson& messages_;
  CallIds calls_;
  OrderedJson answer_;  // that further items may belong to, or null
};

void ReadInput(const RequestFields& body, OrderedJson& messages) {
  const OrderedJson* input = body.Find("input");
  if (input == nullptr) body.Refuse("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return;
  }
  if (!input->is_array()) body.Refuse("input", "expected text, or a list of items");
  body.List("input", 1, kMostMessages);
  ItemReader reader(messages);
  for (std::int64_t i = 0; i < std::ssize(*input); ++i) {
    reader.Add(RequestFields((*input)[i], ItemPath(body.PathOf("input"), i)));
  }
  reader.End();
}

OrderedJson ReadTool(const RequestFields& tool) {
  const std::string type = tool.NeedText("type");
  if (type != "function") {
    tool.Refuse("type",
                fmt::format("expected function; '{}' is not offered here", FirstBytes(type, 60)));
  }
  return ToolOf(tool, "parameters");
}

void CheckText(const RequestFields& fields, std::string_view name, std::string_view words) {
  const std::optional<std::string> text = fields.Text(name);
  if (!text || HasWord(words, *text)) return;
  fields.Refuse(name, fmt::format("expected {}, found '{}'", fmt::join(Words(words, ' '), ", "),
                                  FirstBytes(*text, 40)));
}

// What needs a memory of earlier answers, or would change the answer; and fields of a wrong type or
// value that the response would repeat.
void RefuseOthers(const RequestFields& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (body.Has(name)) {
      body.Refuse(name,
                  "no answers are kept here; give back the items of the conversation as input");
    }
  }
  if (body.Bool("background").value_or(false)) {
    body.Refuse("background", "answers are given in the request alone; leave it out, or stream");
  }
  if (const OrderedJson* edits = body.List("context_management"); edits && !edits->empty()) {
    body.Refuse("context_management", "is not offered here; leave it out");
  }
  CheckText(body, "truncation", "auto disabled");
  CheckText(body, "service_tier", "auto default flex priority scale");
  body.Integer("max_tool_calls", 1);
  body.Bool("store");
  if (const auto text = body.Object("text")) CheckText(*text, "verbosity", "low medium high");
  if (body.Integer("top_logprobs", 0, 20).value_or(0) > 0) {
    body.Refuse("top_logprobs", "is offered by /v1/chat/completions alone");
  }
  const OrderedJson* parts = body.List("include");
  if (parts != nullptr && std::ranges::count(*parts, "message.output_text.logprobs") != 0) {
    body.Refuse("include", "log-probabilities are offered by /v1/chat/completions alone");
  }
  RefuseForeign(body, {"input", "tools", "max_output_tokens", "instructions", "reasoning"});
}

}  // namespace

ConversationRequest ReadResponseRequest(const RequestFields& body, const ServedModel& model) {
  RefuseOthers(body);
  // The response repeats them.
  CheckMetadata(body);
  body.Text("user");
  ConversationRequest request;
  request.schema_path = "parameters";
  if (const auto instructions = body.Text("instructions"); instructions && !instructions->empty()) {
    request.messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  ReadInput(body, request.messages);
  ReadTools(body, request, ReadTool);
  const std::optional<RequestFields> reasoning = body.Object("reasoning");
  if (reasoning) ReadEffort(*reasoning, "effort", model, request);
  RefuseOtherForms(body, "text.format");
  if (const auto text = body.Object("text")) {
    request.format = ReadAnswerFormat(*text, "format", model);
  }
  return request;
}

}  // namespace qlora
