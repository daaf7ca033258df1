#include "prompt/missing_values.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

// Keywords of a schema under which null is a value, and names are no keywords.
constexpr std::string_view kValues = "default const enum examples example";
// Keywords whose fields are schemas under names that people choose.
constexpr std::string_view kNamedSchemas = "properties patternProperties $defs definitions";

void DropNulls(OrderedJson& object, std::string_view kept = {}) {
  for (auto field = object.begin(); field != object.end();) {
    if (field->is_null() && field.key() != kept) {
      field = object.erase(field);
    } else {
      ++field;
    }
  }
}

// kNames: an object of schemas under names.
enum class SchemaPart { kSchema, kNames };

void CompleteSchema(OrderedJson& schema, SchemaPart part) {
  if (schema.is_array()) {
    for (OrderedJson& item : schema) CompleteSchema(item, SchemaPart::kSchema);
    return;
  }
  if (!schema.is_object()) return;
  for (auto field = schema.begin(); field != schema.end();) {
    const bool is_value = part == SchemaPart::kSchema && HasWord(kValues, field.key());
    if (!is_value && field->is_null()) {
      field = schema.erase(field);
      continue;
    }
    const bool has_names = part == SchemaPart::kSchema && HasWord(kNamedSchemas, field.key());
    if (!is_value) CompleteSchema(*field, has_names ? SchemaPart::kNames : SchemaPart::kSchema);
    ++field;
  }
}

}  // namespace

void DropMissingFields(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && SaysNothing(*calls)) message.erase("tool_calls");
  DropNulls(message, "content");
}

void CompleteCall(OrderedJson& call) {
  DropNulls(call);
  OrderedJson& function = call.contains("function") ? call["function"] : call;
  if (!function.is_object()) return;
  DropNulls(function);
  if (!function.contains("arguments")) function["arguments"] = OrderedJson::object();
}

OrderedJson CompleteTools(const OrderedJson& tools, std::string_view where) {
  OrderedJson complete = OrderedJson::array();
  for (const OrderedJson& written : tools) {
    const std::string place = fmt::format("{}[{}]", where, complete.size());
    OrderedJson tool = written.is_string()
                           ? ParseOrderedJson(written.get_ref<const std::string&>(), place)
                           : written;
    if (!tool.is_object()) {
      ThrowInvalidInput("{}: expected an object, found {}", place, tool.type_name());
    }
    // Without the wrapper, {"name", "description", "parameters"}, perhaps with a type beside them;
    // Anthropic calls the parameters input_schema.
    if (!tool.contains("function") && tool.contains("name")) {
      tool.erase("type");
      if (tool.contains("input_schema") && !tool.contains("parameters")) {
        tool["parameters"] = OrderedJson(tool["input_schema"]);
        tool.erase("input_schema");
      }
      tool = {{"type", "function"}, {"function", std::move(tool)}};
    }
    CompleteSchema(tool, SchemaPart::kSchema);
    complete.push_back(std::move(tool));
  }
  return complete;
}

bool CallsInSilence(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || SaysNothing(*calls)) return false;
  const auto content = message.find("content");
  return content == message.end() || SaysNothing(*content);
}

OrderedJson WithNoContent(OrderedJson messages, NoContent form) {
  for (OrderedJson& message : messages) {
    if (!CallsInSilence(message)) continue;
    if (form == NoContent::kAbsent) {
      message.erase("content");
    } else {
      message["content"] = form == NoContent::kEmpty ? OrderedJson("") : OrderedJson();
    }
  }
  return messages;
}

}  // namespace qlora
