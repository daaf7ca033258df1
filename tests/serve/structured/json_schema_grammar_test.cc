// Answers that have the form of a JSON Schema: which texts its grammar has.
#include "serve/structured/json_schema_grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "serve/api_error.h"
#include "serve/structured/grammar_reader.h"
#include "serve/structured/random_schema.h"

namespace qlora {
namespace {

using testing::HasSubstr;

GrammarReader ReaderOf(const std::string& schema) {
  return GrammarReader(std::make_shared<const ByteGrammar>(
      schema == "object" ? JsonObjectGrammar()
                         : JsonSchemaGrammar(OrderedJson::parse(schema), "schema")));
}

bool Has(GrammarReader& reader, std::string_view text) {
  GrammarReader::Position at = reader.begin();
  for (const char byte : text) at = reader.Next(at, static_cast<unsigned char>(byte));
  return reader.CanEnd(at);
}

struct SchemaCase {
  std::string schema;
  std::vector<std::string> in;
  std::vector<std::string> out;
};

TEST(JsonSchemaGrammar, TextsOfSchemas) {
  const std::vector<SchemaCase> cases = {
      {"object",
       {"{}", "{ }", R"({"a":1})", R"({"a": [1, {"b": null}], "c": "d"})", "\n{\n  \"a\": true\n}"},
       {"", "1", "[]", "{", R"({"a"})", R"({"a":1,})", R"({a:1})", "{} ", R"({"a":01})"}},
      {R"({"type": "string"})",
       {R"("")", R"("a\n\"\\\u00e9")", "\"\xC3\xA9\xF0\x9F\x98\x80\"", R"("\ud83d\ude00")"},
       {"a", R"("a)", "\"\n\"", R"("\x")", "\"\xC3\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"",
        R"("\ud83d")", R"("\ude00")", R"("\u12")"}},
      {R"({"type": "string", "minLength": 1, "maxLength": 2})",
       {R"("a")", "\"\xC3\xA9\xC3\xA9\"", R"("\n\n")"},
       {R"("")", R"("abc")"}},
      {R"({"type": "integer"})", {"0", "-1", "120"}, {"1.0", "01", "-", "1e3", "+1"}},
      {R"({"type": "integer", "minimum": -3, "exclusiveMaximum": 120})",
       {"-3", "-1", "0", "7", "99", "100", "119"},
       {"-4", "-10", "120", "121", "1000", "00", "-0"}},
      {R"({"type": "integer", "minimum": 0.5})", {"1", "999999999999999"}, {"0", "-1"}},
      {R"({"type": "integer", "maximum": -10})", {"-10", "-11", "-999"}, {"-9", "10", "0"}},
      {R"({"type": "number"})", {"0", "-1.5", "1e9", "2.50E-3"}, {".5", "1.", "1e", "NaN"}},
      {R"({"type": ["boolean", "null"]})", {"true", "false", "null"}, {"0", "True", "nul"}},
      {R"({"enum": ["red", "re", 1, null, {"a": 1}]})",
       {R"("red")", R"("re")", "1", "null", R"({"a":1})"},
       {R"("r")", "2", "red"}},
      {R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}},
      {R"({"const": null})", {"null"}, {"0"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2]", "[1,2,3]", "[\n  1\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[null]"}},
      {R"({"type": "array"})", {"[]", R"([1, "a", []])"}, {"{}"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}, "c": {}},
           "required": ["a", "c"]})",
       {R"({"a":1,"c":2})", R"({"a": 1, "b": [], "c": {}})"},
       {R"({"a":1})", R"({"c":1,"a":1})", R"({"a":1,"b":1})", R"({"a":"x","c":1})",
        R"({"a":1,"c":2,"d":3})", R"({,"a":1,"c":2})"}},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"b":1,"a":2})", R"({"c":1})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"properties": {"say \"hi\"": {"type": "null"}}, "required": ["say \"hi\""]})",
       {R"({"say \"hi\"":null})"},
       {"{}"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
       {"1", "[]", "[1, [2, []]]"},
       {"null", "[null]"}},
      {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
           "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
           "required": ["next"], "additionalProperties": false}}})",
       {R"({"next":null})", R"({"next":{"next":null}})"},
       {"{}", R"({"next":1})"}},
      {R"({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/no"}, "minItems":
           1}], "$defs": {"no": {"type": "array", "items": {"$ref": "#/$defs/no"}, "minItems": 1}}})",
       {"null"},
       {"[", "[]"}},
      {R"({"allOf": [{"type": "null"}], "title": "T", "description": "d"})", {"null"}, {"1"}},
      {R"({"type": "integer", "minimum": 0, "maximum": 9223372036854775807})", {"7"}, {"-1"}},
      {R"({"type": "integer", "minimum": -1e300, "exclusiveMaximum": 1e300})", {"7", "-7"}, {}},
      {R"({"type": "string", "format": null, "enum": null, "maxLength": 1})",
       {R"("a")"},
       {R"("ab")", "null"}},
      {R"({"const": 5, "enum": null, "pattern": null})", {"5"}, {"null"}},
      {R"({"$ref": "#/definitions/Partial%3CFoo%3e", "definitions": {"Partial<Foo>": {"const": 1}},
           "type": null})",
       {"1"},
       {"2"}},
  };
  for (const SchemaCase& one : cases) {
    GrammarReader reader = ReaderOf(one.schema);
    for (const std::string& text : one.in) EXPECT_TRUE(Has(reader, text)) << one.schema << text;
    for (const std::string& text : one.out) EXPECT_FALSE(Has(reader, text)) << one.schema << text;
  }
}

TEST(JsonSchemaGrammar, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"5", "schema"},
      {"false", "schema"},
      {R"({"type": "text"})", "schema.type"},
      {R"({"type": []})", "schema.type"},
      {R"({"type": "string", "pattern": "a*"})", "schema.pattern"},
      {R"({"type": "string", "format": "date"})", "schema.format"},
      {R"({"type": "number", "minimum": 0})", "schema.minimum"},
      {R"({"type": "string", "maxItems": 3})", "schema.maxItems"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "schema.maxLength"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "schema"},
      {R"({"type": "integer", "minimum": 9223372036854775807})", "schema"},
      {R"({"type": "array", "minItems": 100000})", "schema.minItems"},
      {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
      {R"({"oneOf": [{}]})", "schema.oneOf"},
      {R"({"anyOf": []})", "schema.anyOf"},
      {R"({"anyOf": [{"not": {}}]})", "schema.anyOf[0].not"},
      {R"({"anyOf": [{}], "type": "string"})", "schema.type"},
      {R"({"allOf": [{}, {}]})", "schema.allOf"},
      {R"({"$ref": "#/$defs/a"})", "schema.$ref"},
      {R"({"$ref": "https://example.org/a"})", "schema.$ref"},
      {R"({"$ref": "#"})", "schema"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "schema"},
      {R"({"enum": []})", "schema.enum"},
      {R"({"type": "string", "enum": [1]})", "schema.enum"},
      {R"({"type": "integer", "enum": [1, 5], "minimum": 3})", "schema.minimum"},
      {R"({"enum": ["a", "bbb"], "minLength": 2})", "schema.minLength"},
      {R"({"const": 1, "enum": [2]})", "schema.enum"},
      {R"({"type": "object", "const": {}, "required": ["a"]})", "schema.required"},
      {R"({"type": ["integer", "number"], "minimum": 0})", "schema.minimum"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "schema"},
      {R"({"properties": {"a": 5}})", "schema.properties.a"},
      {R"({"properties": {}, "required": ["a"], "additionalProperties": false})",
       "schema.required"},
      {R"({"items": {"maxLength": -1}})", "schema.items.maxLength"},
      {R"({"items": {"type": "integer", "minimum": 3, "maximum": 2}})", "schema.items"},
      {R"({"properties": {}, "additionalProperties": 5})", "schema.additionalProperties"},
      // Where $id begins another schema, references would be read from there.
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://example.org", "type": "null"}}})",
       "schema/$defs/a.$id"},
  };
  for (const auto& [schema, param] : cases) {
    try {
      JsonSchemaGrammar(OrderedJson::parse(schema), "schema");
      ADD_FAILURE() << schema;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, param) << schema << ": " << error.message;
      EXPECT_EQ(error.status, 400);
      // No number that the schema does not have.
      EXPECT_EQ(error.message.find("000000"), std::string::npos) << error.message;
    }
  }
}

TEST(JsonSchemaGrammar, ArgumentsOfACallAreAnObject) {
  for (const char* schema : {"{}", R"({"$schema": "s", "description": "d", "properties": null})",
                             R"({"type": "object", "properties": {}})"}) {
    JsonGrammar grammar;
    const GrammarState begin =
        JsonSchemaObject(grammar, OrderedJson::parse(schema), "schema",
                         grammar.builder().Literal("}", grammar.builder().end()));
    GrammarReader reader(std::make_shared<const ByteGrammar>(grammar.Finish(begin)));
    EXPECT_TRUE(Has(reader, R"({"a":1}})")) << schema;
    for (const char* other : {"5}", "null}", "[]}"}) EXPECT_FALSE(Has(reader, other)) << schema;
  }
}

TEST(JsonSchemaGrammar, ArgumentsOfOtherTypesAreRefused) {
  for (const char* schema :
       {R"({"type": "string"})", R"({"type": ["object", "null"]})", R"({"const": 1})",
        R"({"anyOf": [{"type": "object"}, {"type": "null"}]})", R"({"enum": [{}]})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}})", R"({"$ref": "#"})"}) {
    JsonGrammar grammar;
    EXPECT_THROW(
        JsonSchemaObject(grammar, OrderedJson::parse(schema), "schema", grammar.builder().end()),
        ApiError)
        << schema;
  }
  JsonGrammar grammar;
  JsonSchemaObject(grammar, OrderedJson::parse(R"({"allOf": [{"$ref": "#/$defs/a"}],
                                                   "$defs": {"a": {"properties": {}}}})"),
                   "schema", grammar.builder().end());
}

// What a refusal would name is no more work than the schema.
TEST(JsonSchemaGrammar, LongNamesWithinEachOtherAreRefused) {
  const std::string name(2000, 'a');
  const OrderedJson inner = {{"type", "object"}, {"properties", {{"b", {{"type", "null"}}}}}};
  OrderedJson schema = {{"type", "object"}};
  schema["properties"][name] = inner;
  try {
    JsonSchemaGrammar(schema, "schema");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_THAT(error.message, HasSubstr("too deep"));
    EXPECT_LE(error.param.size(), 1000u);
  }
}

TEST(JsonSchemaGrammar, IntegersBeyond64BitsAreRead) {
  OrderedJson schema;
  ASSERT_FALSE(TryParseJson(R"({"anyOf": [
      {"type": "integer", "const": 18446744073709551616},
      {"type": "integer", "minimum": 5, "exclusiveMaximum": 18446744073709551616}]})",
                            schema, 100));
  GrammarReader reader(std::make_shared<const ByteGrammar>(JsonSchemaGrammar(schema, "schema")));
  for (const char* text : {"18446744073709551616", "5"}) EXPECT_TRUE(Has(reader, text)) << text;
  for (const char* text : {"18446744073709551617", "4"}) EXPECT_FALSE(Has(reader, text)) << text;
}

TEST(JsonSchemaGrammar, LargeSchemasHaveALimit) {
  OrderedJson large = {{"type", "array"}, {"minItems", 1000}, {"items", {{"type", "string"}}}};
  large["items"]["maxLength"] = 1000;
  JsonSchemaGrammar(large, "schema");
  OrderedJson many = OrderedJson::object();
  for (int i = 0; i < 100; ++i) many[std::to_string(i)] = large;
  try {
    JsonSchemaGrammar({{"type", "object"}, {"properties", many}}, "schema");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_THAT(error.message, HasSubstr("states"));
  }
  OrderedJson deep = {{"type", "null"}};
  for (int i = 0; i < 1000; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_THROW(JsonSchemaGrammar(deep, "schema"), ApiError);
}

// Values stand in each other no deeper than the limit, and still come to their end.
TEST(GrammarReader, NestsToALimit) {
  GrammarReader reader = ReaderOf("object");
  GrammarReader::Position at = reader.begin();
  std::string text;
  const std::string inner = R"({"a":)";
  for (int depth = 0; depth < 100; ++depth) {
    for (const char byte : inner) {
      const GrammarReader::Position next = reader.Next(at, static_cast<unsigned char>(byte));
      if (next == GrammarReader::kNowhere) break;
      at = next;
      text += byte;
    }
  }
  EXPECT_EQ(std::ranges::count(text, '{'), GrammarReader::kMostDepth);
  text += "1" + std::string(GrammarReader::kMostDepth, '}');
  EXPECT_TRUE(Has(reader, text));
  EXPECT_EQ(OrderedJson::parse(text).size(), 1u);
}

// Brackets are counted, not the references between them.
TEST(GrammarReader, CountsBrackets) {
  for (const char* items : {R"({"$ref": "#"})", R"({"type": "array", "items": {"$ref": "#"}})",
                            "{}", R"({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]})"}) {
    GrammarReader reader = ReaderOf(fmt::format(R"({{"type": "array", "items": {}}})", items));
    const std::string deep = std::string(GrammarReader::kMostDepth, '[');
    EXPECT_TRUE(Has(reader, deep + std::string(deep.size(), ']'))) << items;
    EXPECT_FALSE(Has(reader, "[" + deep + std::string(deep.size() + 1, ']'))) << items;
  }
}

// Nothing is begun that could end beyond the limit alone.
TEST(GrammarReader, HasAWayOnAtTheLimit) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type": "object", "properties": {"child": {"$ref": "#"}}})", R"({"child":)"},
      {R"({"type": "array", "items": {"$ref": "#"}})", "["},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
           "b": {"type": "object", "properties": {"c": {"$ref": "#/$defs/a"}}, "required": ["c"]}}})",
       R"([{"c":)"},
  };
  for (const auto& [schema, inner] : cases) {
    GrammarReader reader = ReaderOf(schema);
    GrammarReader::Position at = reader.begin();
    // A model that goes deeper wherever it may, and else takes any byte that is allowed.
    std::size_t bytes = 0;
    for (; !reader.CanEnd(at); ++bytes) {
      ASSERT_LT(bytes, 5000u) << schema;
      const auto wanted = static_cast<unsigned char>(inner[bytes % inner.size()]);
      GrammarReader::Position next = reader.Next(at, wanted);
      for (int byte = 255; next == GrammarReader::kNowhere && byte >= 0x20; --byte) {
        next = reader.Next(at, static_cast<unsigned char>(byte));
      }
      ASSERT_NE(next, GrammarReader::kNowhere) << schema << " after " << bytes;
      at = next;
    }
    EXPECT_GT(bytes, GrammarReader::kMostDepth * inner.size() / 2) << schema;
  }
}

TEST(JsonSchemaGrammar, LongChainsOfReferencesAreRead) {
  OrderedJson defs = {{"0", {{"type", "string"}}}};
  OrderedJson properties = OrderedJson::object();
  for (int i = 1; i < 2000; ++i) {
    const std::string place = "#/$defs/" + std::to_string(i - 1);
    defs[std::to_string(i)] = {{"type", "array"}, {"items", {{"$ref", place}}}};
    properties[std::to_string(i)] = {{"$ref", place}};
  }
  const OrderedJson object = {{"type", "object"}, {"properties", properties}};
  GrammarReader reader =
      ReaderOf(OrderedJson({{"anyOf", {{{"type", "null"}}, object}}, {"$defs", defs}}).dump());
  EXPECT_TRUE(Has(reader, "null"));
  EXPECT_TRUE(Has(reader, R"({"1999":[]})"));
}

TEST(GrammarReader, ForgetsOtherPositions) {
  GrammarReader reader = ReaderOf("object");
  const std::string begin = R"({"a": [{"b": "c)";
  GrammarReader::Position at = reader.begin();
  for (const char byte : begin) at = reader.Next(at, static_cast<unsigned char>(byte));
  const std::size_t before = reader.bytes();
  at = reader.ForgetOthers(at);
  EXPECT_LT(reader.bytes(), before);
  for (const char byte : std::string(R"(d"}, 1]})")) {
    EXPECT_FALSE(reader.CanEnd(at));
    at = reader.Next(at, static_cast<unsigned char>(byte));
  }
  EXPECT_TRUE(reader.CanEnd(at));
  EXPECT_EQ(reader.Next(at, '}'), GrammarReader::kNowhere);
}

// Bytes that nothing tells from each other are followed once, and what may be asked is bounded.
TEST(GrammarReader, CountsItsWork) {
  GrammarReader reader = ReaderOf(R"({"type": "string"})");
  const GrammarReader::Position in = reader.Next(reader.begin(), '"');
  const GrammarReader::Position behind = reader.Next(in, 'a');
  EXPECT_NE(reader.Next(in, 'n'), GrammarReader::kNowhere);
  reader.LimitWork(0);
  for (const char byte : std::string("bcxyz AZ09{}[]")) {
    EXPECT_EQ(reader.Next(in, static_cast<unsigned char>(byte)), behind) << byte;
  }
  EXPECT_THROW(reader.Next(in, '\\'), Error);
  reader.LimitWork(1000);
  EXPECT_NE(reader.Next(in, '\\'), behind);
}

// Every text of the grammar of a random schema is JSON that the schema allows. With
// QLORA_SCHEMA_SAMPLES=FILE they are written there, for another program to judge.
TEST(JsonSchemaGenerator, TextsAreValid) {
  const char* count = std::getenv("QLORA_SCHEMAS");
  const char* file = std::getenv("QLORA_SCHEMA_SAMPLES");
  std::ofstream samples(file == nullptr ? "" : file);
  for (int seed = 0; seed < (count == nullptr ? 150 : std::atoi(count)); ++seed) {
    RandomSchema random(seed);
    const OrderedJson schema = random.Schema();
    GrammarReader reader = ReaderOf(schema.dump());
    for (int i = 0; i < 5; ++i) {
      const std::string text = random.Text(reader);
      const OrderedJson value = OrderedJson::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
      EXPECT_TRUE(IsValid(value, schema, schema)) << schema << "\n" << text;
      samples << OrderedJson({{"schema", schema}, {"text", text}}) << "\n";
    }
  }
}

}  // namespace
}  // namespace qlora
