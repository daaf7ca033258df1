#include "serve/requests/unbound_answers.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/text.h"

namespace qlora {
namespace {

constexpr const char* kNoForm = "an answer cannot be held to a form here";

// A format whose type is text is none.
void RefuseFormat(const RequestFields& fields, const char* name) {
  const std::optional<RequestFields> format = fields.Object(name);
  if (!format) return;
  const std::string type = format->NeedText("type");
  if (type == "text") return;
  format->Refuse(
      "type", fmt::format("'{}' is not offered: {}; use \"text\"", FirstBytes(type, 60), kNoForm));
}

bool MayCallAs(const RequestFields& body, const std::string& choice) {
  if (choice != "auto" && choice != "none") {
    body.Refuse("tool_choice", "only auto and none are offered: a call cannot be forced");
  }
  return choice == "auto";
}

}  // namespace

void RefuseForms(const RequestFields& body) {
  RefuseFormat(body, "response_format");
  if (const auto text = body.Object("text")) RefuseFormat(*text, "format");
  if (const auto output = body.Object("output_config")) RefuseFormat(*output, "format");
  // Anthropic's older name, then those of llama.cpp and vLLM. Some clients send an empty text.
  for (const char* name : {"output_format", "grammar", "json_schema", "guided_json", "guided_regex",
                           "guided_choice", "guided_grammar", "structured_outputs"}) {
    const OrderedJson* form = body.Find(name);
    if (form != nullptr && *form != "") body.Refuse(name, fmt::format("{}; leave it out", kNoForm));
  }
}

bool MayCall(const RequestFields& body) {
  const OrderedJson* choice = body.Find("tool_choice");
  if (choice == nullptr) return true;
  if (!choice->is_string() && !choice->is_object()) {
    body.Refuse("tool_choice", "expected auto or none");
  }
  return MayCallAs(body, choice->is_string() ? choice->get<std::string>() : "");
}

bool MayCallByType(const RequestFields& body) {
  const std::optional<RequestFields> choice = body.Object("tool_choice");
  return !choice || MayCallAs(body, choice->NeedText("type"));
}

}  // namespace qlora
