#include "serve/requests/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/json.h"
#include "serve/answers/answer_forms.h"
#include "serve/answers/argument_text.h"
#include "serve/requests/answer_format.h"
#include "serve/structured/json_grammar.h"
#include "serve/structured/json_schema_grammar.h"

namespace qlora {
namespace {

constexpr const char* kField = "tool_choice";
constexpr std::int64_t kMostTools = 1024;

// The form of calls in JSON behind a mark that is text. Null: a call cannot be forced.
const CallForm* JsonForm(const ServedModel& model, const ConversationRequest& request) {
  const AnswerForm& answers = *FormOf(model, request);
  if (answers.has_channels || answers.calls.empty()) return nullptr;
  const CallForm& form = *answers.calls.front();
  if (form.kind != CallKind::kJson || form.key_is_name || form.follows_prompt) return nullptr;
  const bool is_special =
      std::ranges::any_of(model.tokenizer->spec().added_tokens, [&](const AddedToken& token) {
        return token.special && (token.content == form.open || token.content == form.close);
      });
  return is_special ? nullptr : &form;
}

ByteGrammar GrammarOfCalls(const CallForm& form, const ConversationRequest& request) {
  JsonGrammar grammar;
  GrammarBuilder& builder = grammar.builder();
  const GrammarState end = form.close.empty()
                               ? builder.end()
                               : builder.Literal("\n" + std::string(form.close), builder.end());
  const char* arguments = form.is_whole_answer ? "parameters" : "arguments";
  std::vector<GrammarState> calls;
  for (std::int64_t i = 0; i < std::ssize(request.tools); ++i) {
    const OrderedJson& tool = request.tools[i]["function"];
    if (!request.choice.name.empty() && tool["name"] != request.choice.name) continue;
    const std::string path = ItemPath("tools", i) + "." + request.schema_path;
    const GrammarState value =
        JsonSchemaObject(grammar, tool["parameters"], path, builder.Literal("}", builder.end()));
    calls.push_back(builder.Literal(
        fmt::format("{{\"name\": {}, \"{}\": ", FormatJson(tool["name"]), arguments), value));
  }
  if (calls.empty()) {
    RefuseField(kField, fmt::format("there is no tool '{}'", FirstBytes(request.choice.name, 60)));
  }
  const GrammarState call = grammar.Nested(builder.Either(std::move(calls)), end);
  const std::string open = form.open.empty() ? "" : std::string(form.open) + "\n";
  return grammar.Finish(builder.Literal(open, call));
}

// object: the choice, where it is one.
ToolChoice ReadChoice(const RequestFields& body, const OrderedJson& choice,
                      const std::optional<RequestFields>& object) {
  const std::string type = object ? object->NeedText("type") : choice.get<std::string>();
  if (type == "auto") return {};
  if (type == "none") return {.may_call = false};
  if (type == "required" || type == "any") return {.must_call = true};
  if (!object || (type != "function" && type != "tool")) {
    body.Refuse(kField, fmt::format("expected auto, none, required, or a function by name, found "
                                    "'{}'",
                                    FirstBytes(type, 60)));
  }
  // Chat completions have the name in an object of its own.
  const RequestFields holder = object->Has("function") ? object->NeedObject("function") : *object;
  return {.must_call = true, .name = holder.NeedText("name")};
}

ToolChoice ReadToolChoice(const RequestFields& body) {
  const OrderedJson* field = body.Find(kField);
  const std::optional<RequestFields> object =
      field == nullptr || field->is_string() ? std::nullopt : body.Object(kField);
  ToolChoice choice = field == nullptr ? ToolChoice() : ReadChoice(body, *field, object);
  choice.only_one = !body.Bool("parallel_tool_calls").value_or(true) ||
                    (object && object->Bool("disable_parallel_tool_use").value_or(false));
  return choice;
}

}  // namespace

void ReadTools(const RequestFields& body, ConversationRequest& request,
               const std::function<OrderedJson(const RequestFields& tool)>& tool_of) {
  const ToolChoice choice = ReadToolChoice(body);
  const OrderedJson* tools = body.List("tools", 0, kMostTools);
  OrderedJson list = OrderedJson::array();
  for (std::int64_t i = 0; tools != nullptr && i < std::ssize(*tools); ++i) {
    list.push_back(tool_of(RequestFields((*tools)[i], ItemPath(body.PathOf("tools"), i))));
  }
  if (list.empty() && choice.must_call) RefuseField(kField, "there are no tools to call");
  if (list.empty() || !choice.may_call) return;
  request.types = std::make_shared<const ArgumentTypes>(FormatJson(list));
  request.tools = std::move(list);
  request.choice = choice;
  request.reads_calls = true;
}

AnswerGrammar ForcedCall(const ServedModel& model, const ConversationRequest& request) {
  const CallForm* form = JsonForm(model, request);
  if (form == nullptr) {
    RefuseField(kField, fmt::format("an answer of model '{}' cannot be forced to call; use auto or "
                                    "none",
                                    model.name));
  }
  return AtField(kField, [&] { return HeldForm(GrammarOfCalls(*form, request), model, kField); });
}

}  // namespace qlora
