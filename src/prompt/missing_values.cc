#include "prompt/missing_values.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

// Keywords of a schema under which names are no keywords.
constexpr std::string_view kValues = "default const enum examples example";
// Those that may be null.
constexpr std::string_view kNullable = "default const example";
// Keywords whose fields are schemas under names that people choose.
constexpr std::string_view kNamedSchemas = "properties patternProperties $defs definitions";

// OpenAI's name, that of LangChain, and those of tools and of Llama's and Anthropic's calls.
constexpr std::array<std::string_view, 4> kArguments = {"arguments", "args", "parameters", "input"};

// Removes the fields of which `is_dropped` is true.
void DropFields(OrderedJson& object,
                const std::function<bool(std::string_view, const OrderedJson&)>& is_dropped) {
  for (auto field = object.begin(); field != object.end();) {
    if (is_dropped(field.key(), *field)) {
      field = object.erase(field);
    } else {
      ++field;
    }
  }
}

bool IsNull(std::string_view, const OrderedJson& value) { return value.is_null(); }

// Gives the arguments of a function OpenAI's name.
void NameArguments(OrderedJson& function, const std::string& where) {
  const OrderedJson written = function;
  for (const std::string_view name : kArguments) {
    const auto found = written.find(name);
    if (name == kArguments.front() || found == written.end()) continue;
    const auto known = function.find(kArguments.front());
    const bool is_said = known != function.end() && !SaysNothing(*known);
    if (is_said && !SaysNothing(*found) && *known != *found) {
      ThrowInvalidInput("{}: '{}' and '{}' of a tool call mean the same and differ; keep one",
                        where, kArguments.front(), name);
    }
    if (!is_said) function[std::string(kArguments.front())] = *found;
    function.erase(std::string(name));
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
    const bool is_schema = part == SchemaPart::kSchema;
    const bool is_value = is_schema && HasWord(kValues, field.key());
    if (field->is_null() && !(is_schema && HasWord(kNullable, field.key()))) {
      field = schema.erase(field);
      continue;
    }
    const bool has_names = is_schema && HasWord(kNamedSchemas, field.key());
    if (!is_value) CompleteSchema(*field, has_names ? SchemaPart::kNames : SchemaPart::kSchema);
    ++field;
  }
}

}  // namespace

OrderedJson ParsedText(const OrderedJson& value, const std::string& where) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  return Trim(text).empty() ? OrderedJson() : ParseOrderedJson(text, where);
}

void DropMissingFields(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && SaysNothing(*calls)) message.erase("tool_calls");
  DropFields(message, [](std::string_view name, const OrderedJson& value) {
    return name != "content" && value.empty();
  });
}

void DropNulls(OrderedJson& value) {
  if (!value.is_structured()) return;
  if (value.is_object()) DropFields(value, IsNull);
  for (OrderedJson& item : value) DropNulls(item);
}

void CompleteCall(OrderedJson& call, const std::string& where) {
  DropFields(call, IsNull);
  OrderedJson& function = call.contains("function") ? call["function"] : call;
  if (!function.is_object()) return;
  DropFields(function, IsNull);
  NameArguments(function, where);
  if (!function.contains("arguments")) function["arguments"] = OrderedJson::object();
}

bool IsArgumentsName(std::string_view name) {
  return std::ranges::find(kArguments, name) != kArguments.end();
}

bool DropForeignArguments(OrderedJson& function, const OrderedJson& tools) {
  OrderedJson& arguments = function["arguments"];
  if (!arguments.is_object()) return false;
  const auto has_null = [&] { return std::ranges::any_of(arguments, &OrderedJson::is_null); };
  if (!has_null()) return false;
  for (const OrderedJson& tool : tools) {
    const OrderedJson::json_pointer properties("/function/parameters/properties");
    if (!tool.contains(properties)) continue;
    if (tool["function"].value("name", OrderedJson()) != function.value("name", OrderedJson())) {
      continue;
    }
    const OrderedJson& known = tool[properties];
    DropFields(arguments, [&known](std::string_view name, const OrderedJson& value) {
      return value.is_null() && !known.contains(name);
    });
  }
  return has_null();
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
    if (const OrderedJson::json_pointer parameters("/function/parameters");
        tool.contains(parameters)) {
      tool[parameters] = ParsedText(tool[parameters], place + ": 'parameters'");
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
