#include "serve/structured/json_schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/json.h"
#include "serve/request_fields.h"
#include "serve/structured/schema_reference.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostLength = 1000;
constexpr std::size_t kMostConstantBytes = 4096;
constexpr int kMostDepth = 64;
constexpr std::size_t kMostPathBytes = 1000;  // which is written for each value of the schema

// Keywords that say nothing of a value.
constexpr std::string_view kNotes[] = {
    "title",    "description", "default",     "examples", "example",   "$schema",   "$id",
    "$comment", "$defs",       "definitions", "readOnly", "writeOnly", "deprecated"};

struct Keyword {
  std::string_view name;
  std::string_view type;  // of the values that it binds
};
constexpr Keyword kKeywords[] = {
    {"properties", "object"}, {"required", "object"},          {"additionalProperties", "object"},
    {"items", "array"},       {"minItems", "array"},           {"maxItems", "array"},
    {"minLength", "string"},  {"maxLength", "string"},         {"minimum", "integer"},
    {"maximum", "integer"},   {"exclusiveMinimum", "integer"}, {"exclusiveMaximum", "integer"},
};
constexpr std::string_view kTypes[] = {"object",  "array",   "string", "number",
                                       "integer", "boolean", "null"};

bool IsNote(std::string_view keyword) { return std::ranges::count(kNotes, keyword) != 0; }

// null is a value of const alone.
bool IsAbsent(std::string_view keyword, const OrderedJson& value) {
  return value.is_null() && keyword != "const";
}

bool HasNotesAlone(const OrderedJson& schema) {
  for (const auto& [keyword, value] : schema.items()) {
    if (!IsNote(keyword) && !IsAbsent(keyword, value)) return false;
  }
  return true;
}

bool HasType(const OrderedJson& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (!DigitsOf(value).empty()) return true;  // an integer beyond 64 bits
  if (type == "number" || value.is_number_integer()) return value.is_number();
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>();
}

class SchemaCompiler {
 public:
  SchemaCompiler(JsonGrammar& grammar, const OrderedJson& root, const std::string& path)
      : grammar_(grammar), root_(root), path_(path) {}

  GrammarState Compile(GrammarState next) { return Value(root_, path_, next); }

  // Refuses a schema that allows more than objects, or leaves open whether it does.
  void CheckObject() const {
    const OrderedJson* at = &root_;
    for (int depth = 0; depth < kMostDepth && at != nullptr; ++depth) {
      const RequestFields schema(*at, path_);
      const OrderedJson* parts = schema.List("allOf", 1, kMostLength);
      if (schema.Has("$ref")) {
        at = FindReference(root_, schema.NeedText("$ref"));
      } else if (parts != nullptr) {
        at = &parts->front();
      } else if (TypesOf(schema) == Types{"object"}) {
        return;
      } else {
        break;
      }
    }
    RefuseField(path_, "expected a schema of type object, as arguments of a call are");
  }

 private:
  using Types = std::vector<std::string_view>;

  // A value of the schema, and what follows.
  GrammarState Value(const OrderedJson& schema, const std::string& path, GrammarState next) {
    if (schema == OrderedJson(true)) return grammar_.Any(next);
    const RequestFields fields(schema, path);
    if (++depth_ > kMostDepth || path.size() > kMostPathBytes) {
      RefuseField(std::string(FirstBytes(path, kMostPathBytes)), "the schema is too deep");
    }
    if (&schema != &root_ && fields.Has("$id")) {
      fields.Refuse("$id", "is kept at the root alone, because $ref is read from there");
    }
    const GrammarState begin = ValueOf(fields, next);
    --depth_;
    return begin;
  }

  GrammarState ValueOf(const RequestFields& schema, GrammarState next) {
    for (const char* alone : {"$ref", "anyOf", "allOf"}) {
      if (!schema.Has(alone)) continue;
      RefuseOthers(schema, alone);
      return Combined(schema, alone, next);
    }
    const bool is_constant = schema.json().contains("const");
    if (is_constant) RefuseOthers(schema, "const", "type");
    if (schema.Has("enum")) RefuseOthers(schema, "enum", "type");
    const Types types = TypesOf(schema);
    for (const auto& [keyword, value] : schema.json().items()) {
      if (!IsAbsent(keyword, value)) CheckKeyword(schema, keyword, types);
    }
    if (is_constant) {
      return Constants(schema, "const", OrderedJson::array({schema.json()["const"]}), types, next);
    }
    if (schema.Has("enum")) {
      return Constants(schema, "enum", schema.NeedList("enum", 1, kMostLength), types, next);
    }
    if (types.empty()) return grammar_.Any(next);
    std::vector<GrammarState> choices;
    for (const std::string_view type : types) choices.push_back(OfType(schema, type, next));
    return choices.size() == 1 ? choices[0] : grammar_.builder().Either(std::move(choices));
  }

  GrammarState Combined(const RequestFields& schema, std::string_view keyword, GrammarState next) {
    if (keyword == "$ref") return grammar_.builder().Call(Reference(schema), next);
    const OrderedJson& parts = schema.NeedList(keyword, 1, kMostLength);
    if (keyword == "allOf" && parts.size() != 1) {
      schema.Refuse(keyword, "of one schema alone is kept here");
    }
    std::vector<GrammarState> choices;
    for (std::int64_t i = 0; i < std::ssize(parts); ++i) {
      choices.push_back(Value(parts[i], ItemPath(schema.PathOf(keyword), i), next));
    }
    return grammar_.builder().Either(std::move(choices));
  }

  // A rule for each place that is referred to, so that a schema may contain itself.
  GrammarRule Reference(const RequestFields& schema) {
    const std::string target = schema.NeedText("$ref");
    if (const auto known = references_.find(target); known != references_.end()) {
      return known->second;
    }
    const OrderedJson* found = FindReference(root_, target);
    if (found == nullptr) {
      schema.Refuse("$ref", fmt::format("'{}' is no place of this schema, such as #/$defs/NAME",
                                        FirstBytes(target, 100)));
    }
    const GrammarRule rule = grammar_.builder().NewRule();
    references_.emplace(target, rule);
    grammar_.builder().SetRule(rule,
                               Value(*found, path_ + target.substr(1), grammar_.builder().end()));
    return rule;
  }

  GrammarState Constants(const RequestFields& schema, std::string_view keyword,
                         const OrderedJson& values, const Types& types, GrammarState next) {
    std::vector<std::string> texts;
    for (const OrderedJson& value : values) {
      const auto has_type = [&](std::string_view type) { return HasType(value, type); };
      if (!types.empty() && std::ranges::none_of(types, has_type)) continue;
      texts.push_back(FormatJson(value));
      if (texts.back().size() > kMostConstantBytes) {
        schema.Refuse(keyword,
                      fmt::format("has a value of more than {} bytes", kMostConstantBytes));
      }
    }
    if (texts.empty()) schema.Refuse(keyword, "has no value of the schema's type");
    return grammar_.builder().AnyText(std::move(texts), next);
  }

  GrammarState OfType(const RequestFields& schema, std::string_view type, GrammarState next) {
    if (type == "object") return Object(schema, next);
    if (type == "array") {
      return grammar_.Array(RuleOf(schema, "items"), Lengths(schema, "minItems", "maxItems"), next);
    }
    if (type == "string") {
      return grammar_.String(Lengths(schema, "minLength", "maxLength"), next);
    }
    if (type == "number") return grammar_.Number(next);
    if (type == "integer") {
      return AtField(schema.path(), [&] { return grammar_.Integer(Bounds(schema), next); });
    }
    if (type == "null") return grammar_.builder().Literal("null", next);
    return grammar_.builder().Either(
        {grammar_.builder().Literal("true", next), grammar_.builder().Literal("false", next)});
  }

  GrammarState Object(const RequestFields& schema, GrammarState next) {
    const OrderedJson* others = schema.Find("additionalProperties");
    const bool has_others = others == nullptr || *others != OrderedJson(false);
    if (others != nullptr && !others->is_boolean()) schema.Object("additionalProperties");
    const std::optional<RequestFields> named = schema.Object("properties");
    std::vector<std::string> required;
    if (const OrderedJson* list = schema.List("required", 0, kMostLength)) {
      for (std::int64_t i = 0; i < std::ssize(*list); ++i) {
        required.push_back(AsText((*list)[i], ItemPath(schema.PathOf("required"), i)));
      }
    }
    std::vector<JsonGrammar::Property> properties;
    if (named) {
      for (const auto& [name, value] : named->json().items()) {
        properties.push_back(
            {name, RuleFor(value, named->PathOf(name)), std::ranges::count(required, name) != 0});
      }
    }
    for (const std::string& name : required) {
      if (std::ranges::count(properties, name, &JsonGrammar::Property::name) != 0) continue;
      if (!has_others) schema.Refuse("required", fmt::format("'{}' is no property", name));
      properties.push_back({name, RuleOf(schema, "additionalProperties"), true});
    }
    if (properties.empty() && has_others) {
      return grammar_.Map(RuleOf(schema, "additionalProperties"), next);
    }
    return grammar_.Object(properties, next);
  }

  GrammarRule RuleFor(const OrderedJson& schema, const std::string& path) {
    const GrammarRule rule = grammar_.builder().NewRule();
    grammar_.builder().SetRule(rule, Value(schema, path, grammar_.builder().end()));
    return rule;
  }
  // Any value where there is no such schema.
  GrammarRule RuleOf(const RequestFields& schema, std::string_view keyword) {
    const OrderedJson* found = schema.Find(keyword);
    return RuleFor(found == nullptr ? OrderedJson(true) : *found, schema.PathOf(keyword));
  }

  static JsonGrammar::Lengths Lengths(const RequestFields& schema, std::string_view least,
                                      std::string_view most) {
    JsonGrammar::Lengths lengths{.least = schema.Integer(least, 0, kMostLength).value_or(0),
                                 .most = schema.Integer(most, 0, kMostLength)};
    if (lengths.most && *lengths.most < lengths.least) {
      schema.Refuse(most, fmt::format("is below {}", least));
    }
    return lengths;
  }

  static JsonGrammar::Bounds Bounds(const RequestFields& schema) {
    constexpr double kFar = 1e18;  // beyond all integers that are written
    constexpr double kAny = std::numeric_limits<double>::max();
    JsonGrammar::Bounds bounds;
    const auto raise = [&](std::optional<double> to, bool beyond) {
      if (!to) return;
      const auto up =
          std::int64_t(std::clamp(beyond ? std::floor(*to) + 1 : std::ceil(*to), -kFar, kFar));
      bounds.least = std::max(bounds.least.value_or(up), up);
    };
    const auto lower = [&](std::optional<double> to, bool beyond) {
      if (!to) return;
      const auto down =
          std::int64_t(std::clamp(beyond ? std::ceil(*to) - 1 : std::floor(*to), -kFar, kFar));
      bounds.most = std::min(bounds.most.value_or(down), down);
    };
    raise(schema.Number("minimum", -kAny, kAny), false);
    raise(schema.Number("exclusiveMinimum", -kAny, kAny), true);
    lower(schema.Number("maximum", -kAny, kAny), false);
    lower(schema.Number("exclusiveMaximum", -kAny, kAny), true);
    return bounds;
  }

  // Types that the schema names, or whose keywords it has. Empty: any.
  static Types TypesOf(const RequestFields& schema) {
    Types types;
    const auto add = [&](const OrderedJson& value, const std::string& path) {
      const std::string& name = AsText(value, path);
      const auto at = std::ranges::find(kTypes, name);
      if (at == std::end(kTypes)) {
        RefuseField(path, fmt::format("expected one of {}, found '{}'", fmt::join(kTypes, ", "),
                                      FirstBytes(name, 40)));
      }
      types.push_back(*at);
    };
    if (const OrderedJson* type = schema.Find("type")) {
      const std::string path = schema.PathOf("type");
      if (type->is_string()) {
        add(*type, path);
      } else {
        const OrderedJson& list = schema.NeedList("type", 1, std::ssize(kTypes));
        for (std::int64_t i = 0; i < std::ssize(list); ++i) add(list[i], ItemPath(path, i));
      }
      return types;
    }
    for (const Keyword& keyword : kKeywords) {
      if (schema.Has(keyword.name) && std::ranges::count(types, keyword.type) == 0) {
        types.push_back(keyword.type);
      }
    }
    return types;
  }

  static void CheckKeyword(const RequestFields& schema, std::string_view name, const Types& types) {
    if (IsNote(name) || name == "type" || name == "enum" || name == "const") return;
    const auto at = std::ranges::find(kKeywords, name, &Keyword::name);
    if (at == std::end(kKeywords)) {
      schema.Refuse(name, "this keyword is not kept here; leave it out, and check the answer");
    }
    // It would bind what no value is, or numbers, too.
    const bool binds_numbers = at->type == "integer" && std::ranges::count(types, "number") != 0;
    if (std::ranges::count(types, at->type) != 0 && !binds_numbers) return;
    schema.Refuse(name,
                  fmt::format("is kept for type {} alone, which this schema is not", at->type));
  }

  static void RefuseOthers(const RequestFields& schema, std::string_view alone,
                           std::string_view taken = "") {
    for (const auto& [name, value] : schema.json().items()) {
      if (name == alone || name == taken || IsNote(name) || IsAbsent(name, value)) continue;
      schema.Refuse(name, fmt::format("is not kept beside {}", alone));
    }
  }

  JsonGrammar& grammar_;
  const OrderedJson& root_;
  const std::string& path_;
  std::map<std::string, GrammarRule> references_;
  int depth_ = 0;
};

}  // namespace

ByteGrammar JsonObjectGrammar() {
  JsonGrammar grammar;
  return grammar.Finish(grammar.AnyObject(grammar.builder().end()));
}

GrammarState JsonSchemaObject(JsonGrammar& grammar, const OrderedJson& schema,
                              const std::string& path, GrammarState next) {
  if (HasNotesAlone(schema)) return grammar.AnyObject(next);
  return AtField(path, [&] {
    SchemaCompiler compiler(grammar, schema, path);
    const GrammarState begin = compiler.Compile(next);
    compiler.CheckObject();
    return begin;
  });
}

ByteGrammar JsonSchemaGrammar(const OrderedJson& schema, const std::string& path) {
  JsonGrammar grammar;
  return AtField(path, [&] {
    return grammar.Finish(SchemaCompiler(grammar, schema, path).Compile(grammar.builder().end()));
  });
}

}  // namespace qlora
