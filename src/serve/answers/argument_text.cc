#include "serve/answers/argument_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/text.h"
#include "io/json.h"
#include "serve/structured/schema_reference.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

bool IsJson(std::string_view text) {
  OrderedJson value;
  return !TryParseJson(text, value);
}

// ---- Types.

// The types that a schema allows.
class AllowedTypes {
 public:
  // parameters: the schema that references are into.
  explicit AllowedTypes(const OrderedJson& parameters) : parameters_(parameters) {}

  ArgumentType Of(const OrderedJson& schema) {
    Add(schema);
    if (types_.empty() || types_.contains("")) return ArgumentType::kUnknown;
    if (!types_.contains("string")) return ArgumentType::kValue;
    if (types_.size() == 1) return ArgumentType::kText;
    return types_.size() == 2 && types_.contains("null") ? ArgumentType::kTextOrNull
                                                         : ArgumentType::kUnknown;
  }

 private:
  // Adds names of types; "" of a schema that says nothing.
  void Add(const OrderedJson& schema) {
    const OrderedJson none;
    const auto field = [&](const char* name) -> const OrderedJson& {
      const auto at = schema.find(name);
      return at == schema.end() ? none : *at;
    };
    if (!schema.is_object()) {
      types_.insert("");
    } else if (const OrderedJson& to = field("$ref"); to.is_string()) {
      const auto& target = to.get_ref<const std::string&>();
      const OrderedJson* found = FindReference(parameters_, target);
      if (references_.insert(target).second) Add(found == nullptr ? none : *found);
    } else if (const OrderedJson& any = field(schema.contains("anyOf") ? "anyOf" : "oneOf");
               any.is_array()) {
      for (const OrderedJson& one : any) Add(one);
    } else if (const OrderedJson& all = field("allOf"); all.is_array() && all.size() == 1) {
      Add(all[0]);
    } else if (const OrderedJson& type = field("type"); type.is_string()) {
      types_.insert(LowerCase(type.get<std::string>()));
    } else if (type.is_array()) {
      for (const OrderedJson& one : type) {
        types_.insert(one.is_string() ? LowerCase(one.get<std::string>()) : "");
      }
    } else if (schema.contains("const")) {
      AddValue(schema["const"]);
    } else if (const OrderedJson& values = field("enum"); values.is_array() && !values.empty()) {
      for (const OrderedJson& value : values) AddValue(value);
    } else {
      types_.insert("");
    }
  }
  void AddValue(const OrderedJson& value) {
    types_.insert(value.is_string() ? "string" : value.is_null() ? "null" : "value");
  }

  const OrderedJson& parameters_;
  std::set<std::string> types_;
  std::set<std::string> references_;  // that were followed
};

// ---- Literals.

constexpr int kMaxDepth = 64;

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  std::optional<std::string> Read() {
    std::string json;
    if (!Value(json, 0)) return std::nullopt;
    SkipSpace();
    return text_.empty() ? std::optional(json) : std::nullopt;
  }

 private:
  void SkipSpace() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
  }
  bool Take(std::string_view mark) {
    if (!text_.starts_with(mark)) return false;
    text_.remove_prefix(mark.size());
    return true;
  }

  bool Value(std::string& json, int depth) {
    SkipSpace();
    if (text_.empty() || depth > kMaxDepth) return false;
    if (Take("[")) return List("]", json, depth);
    if (Take("(")) return List(")", json, depth);
    if (Take("{")) return Object(json, depth);
    if (std::string text; Text(text)) {
      json += QuotedText(text);
      return true;
    }
    return Word(json);
  }

  bool List(std::string_view end, std::string& json, int depth) {
    json += '[';
    for (bool is_first = true;; is_first = false) {
      SkipSpace();
      if (Take(end)) break;
      if (!is_first) json += ", ";
      if (!Value(json, depth + 1)) return false;
      SkipSpace();
      if (!Take(",") && !text_.starts_with(end)) return false;
    }
    json += ']';
    return true;
  }

  bool Object(std::string& json, int depth) {
    json += '{';
    for (bool is_first = true;; is_first = false) {
      SkipSpace();
      if (Take("}")) break;
      if (!is_first) json += ", ";
      std::string key;
      if (!Text(key)) {
        const std::size_t end = text_.find_first_of(":,{}[]\"'\n");
        if (end == text_.npos || text_[end] != ':') return false;
        key = Trim(text_.substr(0, end));
        text_.remove_prefix(end);
      }
      SkipSpace();
      if (!Take(":")) return false;
      json += QuotedText(key) + ": ";
      if (!Value(json, depth + 1)) return false;
      SkipSpace();
      if (!Take(",") && !text_.starts_with("}")) return false;
    }
    json += '}';
    return true;
  }

  bool Text(std::string& text) {
    if (Take(kGemmaQuote)) {
      const std::size_t end = text_.find(kGemmaQuote);
      if (end == text_.npos) return false;
      text = text_.substr(0, end);
      text_.remove_prefix(end + kGemmaQuote.size());
      return true;
    }
    if (text_.empty() || (text_[0] != '"' && text_[0] != '\'')) return false;
    const char quote = text_[0];
    text_.remove_prefix(1);
    while (!text_.empty() && text_[0] != quote) {
      if (Take("\\")) {
        if (!Escape(text)) return false;
      } else {
        text += text_[0];
        text_.remove_prefix(1);
      }
    }
    return Take(std::string_view(&quote, 1));
  }

  bool Escape(std::string& text) {
    if (text_.empty()) return false;
    const char c = text_[0];
    text_.remove_prefix(1);
    constexpr std::string_view kLetters = "ntrbf0av";
    constexpr std::string_view kMeanings = {"\n\t\r\b\f\0\a\v", 8};
    if (const std::size_t at = kLetters.find(c); at != kLetters.npos) {
      text += kMeanings[at];
    } else if (c == 'u' || c == 'U' || c == 'x') {
      std::uint32_t code = 0;
      if (!Hex(c == 'u' ? 4 : c == 'U' ? 8 : 2, code)) return false;
      if (code >= 0xD800 && code < 0xDC00) {
        std::uint32_t low = 0;
        if (!Take("\\u") || !Hex(4, low) || low < 0xDC00 || low >= 0xE000) return false;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
      AppendUtf8(code, &text);
    } else {
      // As Python has it: of an unknown escape the backslash is a part.
      if (c != '\\' && c != '\'' && c != '"' && c != '/') text += '\\';
      if (c != '\n') text += c;
    }
    return true;
  }

  bool Hex(std::size_t digits, std::uint32_t& code) {
    if (text_.size() < digits) return false;
    const char* end = text_.data() + digits;
    if (std::from_chars(text_.data(), end, code, 16).ptr != end) return false;
    text_.remove_prefix(digits);
    return true;
  }

  bool Word(std::string& json) {
    const std::size_t end = std::min(text_.find_first_of(",:]})[{(\"' \t\r\n"), text_.size());
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    if (word == "True" || word == "true") {
      json += "true";
    } else if (word == "False" || word == "false") {
      json += "false";
    } else if (word == "None" || word == "null") {
      json += "null";
    } else {
      const bool is_number =
          !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
      if (!is_number || !IsJson(word)) return false;
      json += word;
    }
    return true;
  }

  std::string_view text_;
};

// True where text ends within the escape that it begins with. Two surrogates are one escape.
bool IsHalfEscape(std::string_view text) {
  constexpr std::string_view kPair = "\\uhhhh\\uhhhh";
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const bool is_pair = text.size() > 3 && (text[2] == 'd' || text[2] == 'D') &&
                       std::string_view("89abAB").find(text[3]) != text.npos;
  if (text.size() >= (is_pair ? kPair.size() : kPair.size() / 2)) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool fits = kPair[i] == 'h' ? kHex.find(text[i]) != kHex.npos : text[i] == kPair[i];
    if (!fits) return false;
  }
  return true;
}

}  // namespace

ArgumentTypes::ArgumentTypes(std::string_view tools) {
  OrderedJson list;
  if (tools.empty() || TryParseJson(tools, list) || !list.is_array()) return;
  for (const OrderedJson& tool : list) {
    if (!tool.is_object()) continue;
    const OrderedJson& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      continue;
    }
    auto& types = types_[function["name"].get<std::string>()];
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      types[name] = AllowedTypes(*parameters).Of(schema);
    }
  }
}

ArgumentType ArgumentTypes::Of(std::string_view function, std::string_view argument) const {
  const auto types = types_.find(function);
  if (types == types_.end()) return ArgumentType::kUnknown;
  const auto type = types->second.find(argument);
  return type == types->second.end() ? ArgumentType::kUnknown : type->second;
}

std::string QuotedText(std::string_view text) { return FormatJson(OrderedJson(text)); }

std::string EscapedText(std::string_view text) {
  const std::string quoted = QuotedText(text);
  return quoted.substr(1, quoted.size() - 2);
}

std::string JsonOfArgument(std::string_view text, ArgumentType type) {
  const std::string_view value = Trim(text);
  const bool is_quoted = value.starts_with('"') || value.starts_with('\'');
  switch (type) {
    case ArgumentType::kText:
      return QuotedText(text);
    case ArgumentType::kTextOrNull:
      return value == "null" || value == "None" ? "null" : QuotedText(text);
    case ArgumentType::kUnknown:
      if (is_quoted) return QuotedText(text);
      break;
    case ArgumentType::kValue:
      break;
  }
  if (IsJson(value)) return std::string(value);
  return JsonOfLiteral(value).value_or(QuotedText(text));
}

std::optional<std::string> JsonOfLiteral(std::string_view text) {
  return LiteralReader(text).Read();
}

std::string WholeArguments(std::string_view text) {
  const auto is_object = [](std::string_view json) {
    OrderedJson value;
    return !TryParseJson(json, value) && value.is_object();
  };
  if (Trim(text).empty()) return "{}";
  if (is_object(text)) return std::string(text);
  std::string ends;
  std::string_view begin = text;  // without half an escape, or a comma, at the end
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\' && IsHalfEscape(text.substr(i))) {
        begin = text.substr(0, i);
        break;
      }
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ends += c == '{' ? '}' : ']';
    } else if ((c == '}' || c == ']') && !ends.empty()) {
      ends.pop_back();
    }
  }
  if (!in_text && TrimEnd(begin).ends_with(',')) begin = begin.substr(0, begin.rfind(','));
  std::ranges::reverse(ends);
  for (const char* middle : {"", "\"", "null", ": null", "\": null", "\"\"", "0"}) {
    const std::string whole = std::string(begin) + middle + ends;
    if (is_object(whole)) return whole;
  }
  return FormatJson(OrderedJson{{"arguments", std::string(text)}});
}

}  // namespace qlora
