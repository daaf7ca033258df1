// Random schemas of the kind that serve/structured keeps, random texts of their grammars, and a
// second opinion on which values a schema allows.
#ifndef QLORA_TESTS_SERVE_STRUCTURED_RANDOM_SCHEMA_H_
#define QLORA_TESTS_SERVE_STRUCTURED_RANDOM_SCHEMA_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "io/json_fwd.h"
#include "serve/structured/grammar_reader.h"
#include "serve/structured/token_texts.h"

namespace qlora {

class RandomSchema {
 public:
  explicit RandomSchema(std::uint64_t seed) : key_(MakeKey(seed, RandomPlace::kTest, 77)) {}

  // With one definition, which may refer to itself.
  OrderedJson Schema() {
    OrderedJson schema = Value(3);
    schema["$defs"]["more"] = {
        {"type", "object"},
        {"properties", {{"v", Value(1)}, {"more", {{"$ref", "#/$defs/more"}}}}},
        {"required", {"v"}}};
    return schema;
  }

  // A text of the grammar, which comes to its end.
  std::string Text(GrammarReader& reader) {
    std::string text;
    GrammarReader::Position at = reader.begin();
    while (!reader.CanEnd(at) || Below(3) == 0) {
      std::string allowed;
      for (int byte = 0; byte < 256; ++byte) {
        if (reader.Next(at, static_cast<unsigned char>(byte)) != GrammarReader::kNowhere) {
          allowed += static_cast<char>(byte);
        }
      }
      if (allowed.empty() && reader.CanEnd(at)) break;
      EXPECT_FALSE(allowed.empty()) << text;
      if (allowed.empty() || text.size() > 100'000) return "endless";
      const char byte = Pick(allowed, text.size() > 60);
      at = reader.Next(at, static_cast<unsigned char>(byte));
      text += byte;
    }
    return text;
  }

  std::int32_t Token(const std::vector<std::int32_t>& allowed, const TokenTexts& texts,
                     std::int32_t end, std::size_t length) {
    if (length > 40) {
      if (std::ranges::count(allowed, end)) return end;
      for (const std::string_view wanted : {"\"", "}", "]"}) {
        for (const std::int32_t token : allowed) {
          if (texts.Of(token) == wanted) return token;
        }
      }
    }
    return allowed[Below(allowed.size())];
  }

 private:
  std::uint64_t Below(std::uint64_t n) { return RandomBelow(key_, index_++, n); }

  // Long texts end as soon as they may.
  char Pick(const std::string& allowed, bool ends) {
    if (ends) {
      for (const char close : {'"', '}', ']', '\n', '1'}) {
        if (close != '\n' && allowed.find(close) != std::string::npos) return close;
      }
    }
    // Structure as often as all the bytes that characters begin with.
    std::string shown;
    for (const char byte : allowed) {
      if (std::string_view("{}[]\",:0123456789.-+eEtfn ").find(byte) != std::string_view::npos) {
        shown += byte;
      }
    }
    return shown.empty() || Below(4) == 0 ? allowed[Below(allowed.size())]
                                          : shown[Below(shown.size())];
  }

  OrderedJson Value(int depth) {
    switch (Below(depth > 0 ? 12 : 7)) {
      case 0:
        return {{"type", "string"}};
      case 1: {
        const std::uint64_t least = Below(3);
        return {{"type", "string"}, {"minLength", least}, {"maxLength", least + Below(3)}};
      }
      case 2:
        return {{"type", {"integer", "null"}}};
      case 3: {
        const std::int64_t least = static_cast<std::int64_t>(Below(3000)) - 1500;
        return {{"type", "integer"},
                {"minimum", least},
                {"maximum", least + std::int64_t(Below(2000))}};
      }
      case 4:
        return {{"type", {"number", "boolean"}}};
      case 5:
        return {{"enum", {"a", "ab", "\xC3\xA9\"", 1, nullptr, {{"k", {1, 2}}}}}};
      case 6:
        return {{"exclusiveMinimum", Below(100)}};
      case 7:
        return {{"anyOf", {Value(depth - 1), Value(depth - 1), {{"$ref", "#/$defs/more"}}}}};
      case 8: {
        const std::uint64_t least = Below(3);
        OrderedJson list = {{"type", "array"}, {"items", Value(depth - 1)}, {"minItems", least}};
        if (Below(2) == 0) list["maxItems"] = least + Below(3);
        return list;
      }
      case 9:
        return {{"type", "object"}, {"additionalProperties", Value(depth - 1)}};
      case 10:
        return OrderedJson::object();
      default:
        return Object(depth);
    }
  }

  OrderedJson Object(int depth) {
    OrderedJson object = {{"type", "object"}, {"properties", OrderedJson::object()}};
    OrderedJson required = OrderedJson::array();
    for (std::uint64_t i = 0, count = Below(5); i < count; ++i) {
      const std::string name = "p" + std::to_string(i);
      object["properties"][name] = Value(depth - 1);
      if (Below(2) == 0) required.push_back(name);
    }
    if (!required.empty()) object["required"] = required;
    if (Below(2) == 0) object["additionalProperties"] = false;
    return object;
  }

  RandomKey key_;
  std::uint64_t index_ = 0;
};

inline std::int64_t CharactersOf(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

// By the words of JSON Schema 2020-12, for the keywords that RandomSchema writes.
inline bool IsValid(const OrderedJson& value, const OrderedJson& schema, const OrderedJson& root) {
  if (schema.contains("$ref")) return IsValid(value, root["$defs"]["more"], root);
  const auto has_type = [&](const std::string& type) {
    if (type == "string") return value.is_string();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    return type == "array" ? value.is_array() : value.is_object();
  };
  if (schema.contains("type")) {
    OrderedJson types = schema["type"];
    if (types.is_string()) types = OrderedJson::array({types});
    if (std::ranges::none_of(types, [&](const OrderedJson& t) { return has_type(t); }))
      return false;
  }
  if (schema.contains("anyOf") &&
      std::ranges::none_of(schema["anyOf"],
                           [&](const OrderedJson& one) { return IsValid(value, one, root); })) {
    return false;
  }
  if (schema.contains("enum") && !std::ranges::count(schema["enum"], value)) return false;
  const auto within = [&](double size, const char* least, const char* most) {
    return size >= schema.value(least, -1e300) && size <= schema.value(most, 1e300);
  };
  if (value.is_string() &&
      !within(static_cast<double>(CharactersOf(value)), "minLength", "maxLength")) {
    return false;
  }
  if (value.is_number()) {
    if (!within(value, "minimum", "maximum")) return false;
    if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"]) return false;
  }
  if (value.is_array()) {
    if (!within(static_cast<double>(value.size()), "minItems", "maxItems")) return false;
    for (const OrderedJson& item : value) {
      if (schema.contains("items") && !IsValid(item, schema["items"], root)) return false;
    }
  }
  if (!value.is_object()) return true;
  for (const OrderedJson& name : schema.value("required", OrderedJson::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const OrderedJson named = schema.value("properties", OrderedJson::object());
  const OrderedJson others = schema.value("additionalProperties", OrderedJson(true));
  for (const auto& [name, member] : value.items()) {
    const OrderedJson& its = named.contains(name) ? named[name] : others;
    if (its.is_boolean() ? !its.get<bool>() : !IsValid(member, its, root)) return false;
  }
  return true;
}

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_STRUCTURED_RANDOM_SCHEMA_H_
