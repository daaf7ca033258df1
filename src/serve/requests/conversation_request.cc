#include "serve/requests/conversation_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/text.h"
#include "io/json.h"
#include "prompt/prompt_renderer.h"
#include "serve/answers/call_reader.h"
#include "serve/api_error.h"
#include "serve/request_log.h"

namespace qlora {
namespace {

// Tokens of a text have fewer bytes on average, whatever the text is.
constexpr std::int64_t kMostTokenBytes = 256;

}  // namespace

void SetVariable(std::string_view name, OrderedJson value, const ServedModel& model,
                 ConversationRequest& request) {
  const ChatTemplate* chat = model.prompts ? model.prompts->chat() : nullptr;
  if (chat != nullptr && chat->ReadsVariable(name)) {
    request.variables[std::string(name)] = std::move(value);
  }
}

void SetThinking(bool thinks, const ServedModel& model, ConversationRequest& request) {
  SetVariable("enable_thinking", thinks, model, request);  // most
  SetVariable("thinking", thinks, model, request);         // DeepSeek, Granite
  SetVariable("thinking_mode", thinks ? "enabled" : "disabled", model, request);  // MiniMax
}

void ReadEffort(const RequestFields& fields, std::string_view name, const ServedModel& model,
                ConversationRequest& request) {
  constexpr std::string_view kEfforts = "none minimal low medium high xhigh max";
  const std::string effort = fields.Text(name).value_or("");
  if (effort.empty()) return;
  if (!HasWord(kEfforts, effort)) {
    fields.Refuse(name, fmt::format("expected one of {}, found '{}'",
                                    fmt::join(Words(kEfforts, ' '), ", "), FirstBytes(effort, 60)));
  }
  SetThinking(effort != "none", model, request);
  if (effort != "none") SetVariable("reasoning_effort", effort, model, request);
}

void ReadVariables(const RequestFields& body, ConversationRequest& request) {
  const auto variables = body.Object("chat_template_kwargs");
  if (!variables) return;
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
    if (variables->Has(name)) variables->Refuse(name, "is set by the request itself");
  }
  for (const auto& [name, value] : variables->json().items()) request.variables[name] = value;
}

std::string JoinedText(const RequestFields& fields, std::string_view name,
                       const TextOfPart& text_of) {
  const OrderedJson* content = fields.Find(name);
  if (content == nullptr) fields.Refuse(name, "is missing");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) fields.Refuse(name, "expected text, or a list of parts");
  std::string text;
  for (std::int64_t i = 0; i < std::ssize(*content); ++i) {
    const RequestFields part((*content)[i], ItemPath(fields.PathOf(name), i));
    text += text_of(part, part.NeedText("type"));
  }
  return text;
}

OrderedJson ToolOf(const RequestFields& function, std::string_view schema_name) {
  const std::string name = function.NeedText("name");
  // Else a call of the tool would be read as text.
  if (!IsToolName(name)) {
    function.Refuse("name", fmt::format("expected 1 to {} bytes: letters, digits and _ - . : /, "
                                        "found '{}'",
                                        kMaxNameBytes, FirstBytes(name, 60)));
  }
  OrderedJson made = {{"name", name}};
  if (const auto description = function.Text("description")) made["description"] = *description;
  function.Bool("strict");
  const std::optional<RequestFields> schema = function.Object(schema_name);
  made["parameters"] = schema
                           ? schema->json()
                           : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
  return {{"type", "function"}, {"function", std::move(made)}};
}

void CallIds::CheckResult(const OrderedJson& messages, const std::string& id,
                          const std::string& path) {
  for (; read_ < std::ssize(messages); ++read_) {
    const auto calls = messages[read_].find("tool_calls");
    if (calls == messages[read_].end()) continue;
    for (const OrderedJson& call : *calls) ids_.insert(call["id"].get<std::string>());
  }
  if (ids_.contains(id)) return;
  RefuseField(path, fmt::format("no message before this result makes the call '{}'; give back the "
                                "answer with the call, and its result behind it",
                                FirstBytes(id, 100)));
}

void CheckPromptText(const ServedModel& model, std::string_view text, const std::string& path) {
  if (std::ssize(text) / kMostTokenBytes < model.context_length) return;
  throw ContextExceeded(model.context_length, fmt::format("{} bytes", text.size()), path);
}

const std::shared_ptr<const AnswerForm>& FormOf(const ServedModel& model,
                                                const ConversationRequest& request) {
  const bool has_own = !request.tools.is_null() && model.tool_answers != nullptr;
  return has_own ? model.tool_answers : model.answers;
}

ConversationPrompt PromptOf(const ServedModel& model, const ConversationRequest& request) {
  const AnswerForm& form = *FormOf(model, request);
  if (request.reads_calls && !HasCalls(form)) {
    RefuseField("tools",
                fmt::format("the chat template of model '{}' has no form of calls that is read "
                            "here; send the request without tools",
                            model.name));
  }
  OrderedJson conversation = {{"messages", request.messages}};
  if (!request.tools.is_null()) conversation["tools"] = request.tools;
  if (!request.variables.is_null()) conversation["chat_template_kwargs"] = request.variables;
  PromptText prompt = model.prompts->OfConversation(conversation);
  const bool begins_with_thought = EndsInThought(form, prompt.text);
  if (!request.begin.empty() && begins_with_thought) {
    RefuseField("messages", fmt::format("an answer of model '{}' begins with a thought, so that "
                                        "its text cannot be begun here; turn thinking off",
                                        model.name));
  }
  prompt.text += request.begin;
  CheckPromptText(model, prompt.text);
  std::vector<std::int32_t> tokens = EncodePrompt(*model.tokenizer, prompt);
  return {std::move(prompt.text), std::move(tokens), begins_with_thought, HasMarks(form)};
}

LoggedQuestion QuestionOf(const ConversationRequest& request) {
  return {.messages = request.messages,
          .tools = request.tools,
          .variables = request.variables,
          .begin = request.begin};
}

std::size_t BytesHeldOf(const ConversationRequest& request, bool is_kept) {
  std::size_t bytes = request.types == nullptr ? 0 : BytesOfJson(request.tools);
  if (!is_kept) return bytes;
  for (const OrderedJson* json : {&request.messages, &request.tools, &request.variables}) {
    bytes += BytesOfJson(*json);
  }
  return bytes + request.begin.size();
}

AnswerParts PartsOf(const ServedModel& model, const ConversationRequest& request,
                    const ConversationPrompt& prompt) {
  // Within a form no text is a mark.
  const auto& form = FormOf(model, request);
  return AnswerParts(request.format.grammar == nullptr ? form : WithoutMarks(*form),
                     prompt.begins_with_thought, request.reads_calls, request.types,
                     request.choice.only_one);
}

std::function<bool(std::string_view)> EndOfOneCall(const ServedModel& model,
                                                   const ConversationRequest& request,
                                                   const ConversationPrompt& prompt) {
  if (!request.reads_calls || !request.choice.only_one) return {};
  return [parts = std::make_shared<AnswerParts>(PartsOf(model, request, prompt))](
             std::string_view piece) {
    return std::ranges::any_of(parts->Add(piece), [](const AnswerPart& part) {
      return part.kind == AnswerPart::Kind::kCallEnd;
    });
  };
}

}  // namespace qlora
