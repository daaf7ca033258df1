#include "prompt/content_parts.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr std::string_view kTextTypes = "text input_text output_text";
constexpr std::string_view kOtherTypes =
    "thinking reasoning redacted_thinking tool_use tool_result image image_url input_image audio "
    "input_audio audio_url video video_url file document refusal";

// The text of a field of a part, which must be there.
std::string FieldOf(const OrderedJson& part, const char* key, const std::string& where) {
  const auto value = part.find(key);
  if (value == part.end()) ThrowInvalidInput("{}: '{}' is missing", where, key);
  return TextOfValue(*value, where, key);
}

// Returns the type of a part; a part with a text alone is text.
std::string TypeOf(const OrderedJson& part) {
  if (!part.is_object()) return part.is_string() ? "text" : part.type_name();
  const auto type = part.find("type");
  if (type == part.end()) return part.contains("text") ? "text" : "without a type";
  return type->is_string() ? type->get<std::string>() : type->type_name();
}

// A part without the fields that are null, but its text.
OrderedJson WithoutNulls(OrderedJson part) {
  for (auto field = part.begin(); part.is_object() && field != part.end();) {
    field = field->is_null() && field.key() != "text" ? part.erase(field) : std::next(field);
  }
  return part;
}

// A text beside other fields is data, unless the type says that it is a part.
bool IsPart(const OrderedJson& written) {
  if (written.is_string()) return true;
  if (!written.is_object()) return false;
  const OrderedJson value = WithoutNulls(written);
  const std::string type = TypeOf(value);
  if (!value.contains("type") && value.size() > 1) return false;
  return HasWord(kTextTypes, type) || HasWord(kOtherTypes, type);
}

OrderedJson CallOf(const OrderedJson& part, const std::string& where) {
  const auto input = part.find("input");
  const bool given = input != part.end();
  OrderedJson call = {{"type", "function"},
                      {"function",
                       {{"name", FieldOf(part, "name", where)},
                        {"arguments", given ? *input : OrderedJson::object()}}}};
  if (part.contains("id")) call["id"] = part["id"];
  return call;
}

OrderedJson ResultOf(const OrderedJson& part, const std::string& where) {
  const OrderedJson content = part.contains("content") ? part["content"] : OrderedJson();
  OrderedJson message = {{"role", "tool"}, {"content", content}};
  if (!IsData(content)) message["content"] = ReadContent(content, where).text.value_or("");
  if (part.contains("tool_use_id")) message["tool_call_id"] = part["tool_use_id"];
  return message;
}

}  // namespace

std::string TextOfValue(const OrderedJson& value, std::string_view where, std::string_view key) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return FormatJson(value);
  ThrowInvalidInput("{}: '{}': expected text, found {}", where, key, value.type_name());
}

bool IsData(const OrderedJson& content) {
  if (content.is_object()) return !IsPart(content);
  return content.is_array() && !std::all_of(content.begin(), content.end(), IsPart);
}

ContentParts ReadContent(const OrderedJson& content, const std::string& where,
                         std::string_view key) {
  ContentParts parts;
  if (content.is_null()) return parts;
  if (content.is_object() && IsPart(content)) {
    return ReadContent(OrderedJson::array({content}), where, key);
  }
  if (!content.is_array()) {
    parts.text = TextOfValue(content, where, key);
    return parts;
  }
  const auto add_text = [&parts](const std::string& text) {
    parts.text = parts.text.value_or("") + text;
    parts.texts.push_back(text);
  };
  for (const OrderedJson& written : content) {
    const OrderedJson part = WithoutNulls(written);
    const std::string type = TypeOf(part);
    if (HasWord(kTextTypes, type)) {
      if (part.is_object() && part.contains("text") && part["text"].is_null()) continue;
      add_text(part.is_string() ? part.get<std::string>() : FieldOf(part, "text", where));
    } else if (type == "thinking" || type == "reasoning") {
      const char* name = part.contains(type) ? type.c_str() : "text";
      parts.thoughts += FieldOf(part, name, where);
    } else if (type == "redacted_thinking") {
      parts.has_hidden_thoughts = true;
    } else if (type == "tool_use") {
      parts.calls.push_back(CallOf(part, where));
    } else if (type == "tool_result") {
      parts.results.push_back(ResultOf(part, where));
    } else {
      ThrowInvalidInput(
          "{}: '{}' holds a part that is not text ({}); only text, thoughts and calls of tools can "
          "be trained on",
          where, key, type);
    }
  }
  // A list without parts says nothing, as an empty text does.
  if (content.empty()) parts.text = "";
  return parts;
}

}  // namespace qlora
