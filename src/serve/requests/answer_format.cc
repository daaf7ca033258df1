#include "serve/requests/answer_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "serve/request_room.h"
#include "serve/requests/tool_choice.h"
#include "serve/structured/json_schema_grammar.h"
#include "serve/structured/token_texts.h"

namespace qlora {
namespace {

constexpr std::string_view kOlderName = "output_format";

// Refuses what is not read, such as a schema under another name: it would not be kept.
void RefuseOthers(const RequestFields& format, std::initializer_list<std::string_view> read) {
  for (const auto& [name, value] : format.json().items()) {
    if (value.is_null() || std::ranges::count(read, name) != 0) continue;
    format.Refuse(name, "is not read here; leave it out");
  }
}

ByteGrammar GrammarOf(const RequestFields& format, const std::string& type) {
  // Other servers take a schema there, too.
  if (type == "json_object") {
    RefuseOthers(format, {"type", "schema"});
    if (!format.Has("schema")) return JsonObjectGrammar();
  }
  // Chat completions have the schema in an object of its own.
  const bool is_apart = format.Has("json_schema");
  if (is_apart) RefuseOthers(format, {"type", "json_schema"});
  const RequestFields holder = is_apart ? format.NeedObject("json_schema") : format;
  RefuseOthers(holder, {"type", "schema", "name", "description", "strict"});
  for (const char* name : {"name", "description"}) holder.Text(name);
  holder.Bool("strict");
  if (!holder.Has("schema")) holder.Refuse("schema", "is missing");
  return JsonSchemaGrammar(*holder.Find("schema"), holder.PathOf("schema"));
}

// Holds the answer to such a prompt to the format of the conversation.
void HoldToFormat(const ServedModel& model, const ConversationRequest& request,
                  const ConversationPrompt& prompt, const std::string& stops_path,
                  GenerationRequest& generation) {
  const bool has_format = request.format.grammar != nullptr;
  if (!has_format && !request.choice.must_call) return;
  const std::string path = has_format ? request.format.path : "tool_choice";
  if (has_format && request.reads_calls) {
    RefuseField(path,
                "an answer that may call tools is not held to a form; leave out the tools, "
                "or set tool_choice to none");
  }
  if (!has_format && !generation.stops.empty()) {
    RefuseField(stops_path, "a stop text would cut the call that must be made; leave it out");
  }
  if (!request.begin.empty()) {
    RefuseField(path, "an answer that the request begins is not held to a form");
  }
  const AnswerForm& form = *FormOf(model, request);
  if (HasChannels(form)) {
    RefuseField(path, fmt::format("answers of model '{}' have several channels, and are not held "
                                  "to a form",
                                  model.name));
  }
  generation.format = has_format ? request.format : ForcedCall(model, request);
  if (prompt.begins_with_thought) generation.format.begins_behind = ThoughtEnd(form);
  CheckKeepsForm(generation);
}

}  // namespace

AnswerGrammar ReadAnswerFormat(const RequestFields& holder, std::string_view field,
                               const ServedModel& model) {
  const std::optional<RequestFields> format = holder.Object(field);
  if (!format) return {};
  const std::string type = format->NeedText("type");
  if (type == "text") {
    RefuseOthers(*format, {"type"});
    return {};
  }
  if (type != "json_object" && type != "json_schema") {
    format->Refuse("type", fmt::format("expected text, json_object or json_schema, found '{}'",
                                       FirstBytes(type, 60)));
  }
  return HeldForm(GrammarOf(*format, type), model, format->path());
}

AnswerGrammar HeldForm(ByteGrammar grammar, const ServedModel& model, const std::string& path) {
  struct Held {
    explicit Held(std::shared_ptr<RequestRoom> room) : bytes(std::move(room)) {}
    HeldBytes bytes;
    ByteGrammar grammar;
  };
  const auto held = std::make_shared<Held>(model.room);
  held->bytes.Add(grammar.bytes(), path, "lower minLength, maxLength, minItems and maxItems");
  held->grammar = std::move(grammar);
  return {.grammar = std::shared_ptr<const ByteGrammar>(held, &held->grammar),
          .texts = model.token_texts->Get(*model.tokenizer, model.vocabulary),
          .path = path};
}

void RefuseOtherForms(const RequestFields& body, std::string_view own) {
  const auto refuse = [&](const RequestFields& holder, std::string_view name, bool is_own) {
    const OrderedJson* form = holder.Find(name);
    // Some clients send an empty text, or a format that is none.
    if (is_own || form == nullptr || *form == "") return;
    if (form->is_object() && form->contains("type") && (*form)["type"] == "text") return;
    holder.Refuse(name, fmt::format("this interface holds answers to a form by {}", own));
  };
  for (const char* name :
       {"response_format", "output_format", "json_schema", "grammar", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar", "structured_outputs"}) {
    refuse(body, name, own == name || (own == "output_config.format" && name == kOlderName));
  }
  for (const char* holder : {"text", "output_config"}) {
    const OrderedJson* object = body.Find(holder);
    if (object == nullptr || !object->is_object()) continue;
    refuse(RequestFields(*object, body.PathOf(holder)), "format",
           own == std::string(holder) + ".format");
  }
}

ConversationPrompt AskConversation(const ServedModelPtr& model, const ConversationRequest& request,
                                   GenerationRequest& generation, const std::string& stops_path) {
  ConversationPrompt prompt = PromptOf(*model, request);
  HoldToFormat(*model, request, prompt, stops_path, generation);
  generation.model = model;
  generation.keeps_special_tokens = prompt.keeps_special_tokens;
  generation.prompt = std::move(prompt.tokens);
  return prompt;
}

void CheckKeepsForm(const GenerationRequest& generation) {
  if (generation.format.grammar == nullptr) return;
  if (generation.ignore_eos) RefuseField("ignore_eos", "an answer with a form ends with the form");
  if (generation.min_tokens > 0) {
    RefuseField("min_tokens", "an answer with a form ends with the form");
  }
  for (const auto& [token, bias] : generation.logit_bias) {
    if (!std::isinf(bias)) continue;
    RefuseField("logit_bias",
                fmt::format("token {} is forbidden, which an answer with a form may need; expected "
                            "a bias above -100",
                            token));
  }
}

}  // namespace qlora
