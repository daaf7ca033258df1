// Answers that have the form of a JSON Schema: which texts its grammar has, and which tokens may
// follow.
#include "serve/structured/json_schema_grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "serve/api_error.h"
#include "serve/structured/grammar_edit.h"
#include "serve/structured/grammar_reader.h"
#include "serve/structured/random_schema.h"
#include "serve/structured/token_texts.h"
#include "serve/tiny_model.h"

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

// ---- Tokens.

class GrammarEditTest : public testing::Test {
 protected:
  static constexpr std::int64_t kVocabulary = 288;
  static constexpr std::int32_t kEnd = 2;

  AnswerGrammar Form(const std::string& schema, const std::string& begins_behind = "") const {
    return {.grammar = std::make_shared<const ByteGrammar>(
                JsonSchemaGrammar(OrderedJson::parse(schema), "schema")),
            .texts = texts_,
            .begins_behind = begins_behind};
  }
  std::vector<float> Logits(GrammarEdit& edit, const std::vector<std::int32_t>& answer) const {
    std::vector<float> logits(kVocabulary);
    edit.Apply(answer, logits);
    EXPECT_TRUE(std::ranges::any_of(logits, IsAllowed));
    return logits;
  }
  static bool IsAllowed(float logit) { return logit == 0; }

  TestModelFolder folder_;
  Tokenizer tokenizer_ = Tokenizer::Load(folder_.path());
  std::shared_ptr<const TokenTexts> texts_ =
      std::make_shared<const TokenTexts>(tokenizer_, kVocabulary);
};

// Each token by itself is what the walk over sorted texts says.
TEST_F(GrammarEditTest, MasksAreThoseOfTheTexts) {
  const std::string schema = R"({"type": "object", "properties": {"the": {"type": "string"}}})";
  GrammarReader reader(Form(schema).grammar);
  for (const std::string begin : {"", "{", "{\"the", "{\"the\": \"", "{\"the\":\"a\"", "{}"}) {
    GrammarReader::Position at = reader.begin();
    for (const char byte : begin) at = reader.Next(at, static_cast<unsigned char>(byte));
    const std::vector<bool> allowed = texts_->Allowed(reader, at);
    for (std::int32_t token = 0; token < kVocabulary; ++token) {
      GrammarReader::Position behind = at;
      for (const char byte : texts_->Of(token)) {
        behind = reader.Next(behind, static_cast<unsigned char>(byte));
      }
      const bool is_text = token > 2 && !texts_->Of(token).empty();  // <unk>, <s> and </s> are none
      EXPECT_EQ(allowed[token], is_text && behind != GrammarReader::kNowhere)
          << begin << " " << texts_->Of(token);
    }
  }
}

// Ends need not be special tokens.
TEST_F(GrammarEditTest, AnEndIsNoTextOfTheForm) {
  std::int32_t a = 0;
  while (texts_->Of(a) != "a") ++a;
  GrammarEdit edit(Form(R"({"type": "string"})"), {a});
  std::int32_t quote = 0;
  while (texts_->Of(quote) != "\"") ++quote;
  EXPECT_FALSE(IsAllowed(Logits(edit, {quote})[a]));
  EXPECT_TRUE(IsAllowed(Logits(edit, {quote, quote})[a]));
}

// Whatever tokens are drawn among those that are allowed, the answer is valid.
TEST_F(GrammarEditTest, AnswersHaveTheForm) {
  for (int seed = 0; seed < 20; ++seed) {
    RandomSchema random(seed);
    const OrderedJson schema = random.Schema();
    GrammarEdit edit(Form(schema.dump()), {kEnd});
    std::vector<std::int32_t> answer;
    std::string text;
    while (true) {
      const std::vector<float> logits = Logits(edit, answer);
      std::vector<std::int32_t> allowed;
      for (std::int32_t token = 0; token < kVocabulary; ++token) {
        if (IsAllowed(logits[token])) allowed.push_back(token);
      }
      ASSERT_FALSE(allowed.empty());
      const std::int32_t token = random.Token(allowed, *texts_, kEnd, answer.size());
      if (token == kEnd) break;
      answer.push_back(token);
      text += texts_->Of(token);
      ASSERT_LT(answer.size(), 5000u);
    }
    const OrderedJson value = OrderedJson::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text;
    EXPECT_TRUE(IsValid(value, schema, schema)) << schema << "\n" << text;
  }
}

// The engine would halt for all answers.
TEST_F(GrammarEditTest, ASchemaOfTooManyWaysIsRefused) {
  const AnswerGrammar form = Form(
      R"({"anyOf": [{"type": "string", "maxLength": 20}, {"type": "string", "maxLength": 21}]})");
  const std::vector<std::int32_t> answer = tokenizer_.Encode("\"a", false);
  std::vector<float> logits(kVocabulary);
  GrammarEdit(form, {kEnd}).Apply(answer, logits);
  GrammarEdit bounded(form, {kEnd}, /*most_work=*/100);
  try {
    bounded.Apply(answer, logits);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("alternatives"));
  }
}

TEST_F(GrammarEditTest, AThoughtComesBeforeTheForm) {
  GrammarEdit edit(Form(R"({"type": "null"})", "ok"), {kEnd});
  const auto tokens = [&](const std::string& text) { return tokenizer_.Encode(text, false); };
  std::vector<float> logits = Logits(edit, {});
  EXPECT_FALSE(IsAllowed(logits[kEnd])) << "a thought is no answer";
  EXPECT_EQ(std::ranges::count_if(logits, IsAllowed), kVocabulary - 1);
  const std::vector<std::int32_t> answer = tokens("so ok");
  logits = Logits(edit, answer);
  for (std::int32_t token = 0; token < kVocabulary; ++token) {
    const std::string_view text = texts_->Of(token);
    if (text == "n") {
      EXPECT_TRUE(IsAllowed(logits[token]));
    } else if (text == "x" || text == "}") {
      EXPECT_FALSE(IsAllowed(logits[token])) << text;
    }
  }
}

// A token that ends the thought goes on as the form begins, or not at all.
TEST_F(GrammarEditTest, ATokenMayEndAThoughtAndBeginTheForm) {
  for (std::int32_t thought = 3; thought < kVocabulary; ++thought) {
    const std::string mark(texts_->Of(thought));
    if (mark.size() != 1) continue;
    const AnswerGrammar form = Form(R"({"type": "string"})", mark);
    GrammarEdit edit(form, {kEnd});
    GrammarReader reader(form.grammar);
    const std::vector<float> logits = Logits(edit, {});
    for (std::int32_t token = 3; token < kVocabulary; ++token) {
      const std::string_view text = texts_->Of(token);
      const std::size_t at = text.find(mark);
      GrammarReader::Position behind = reader.begin();
      for (std::size_t i = at; at != std::string_view::npos && ++i < text.size();) {
        behind = reader.Next(behind, static_cast<unsigned char>(text[i]));
      }
      EXPECT_EQ(IsAllowed(logits[token]), behind != GrammarReader::kNowhere) << mark << text;
    }
  }
}

TEST_F(GrammarEditTest, AVocabularyWithoutTheText) {
  GrammarEdit edit(Form(R"({"const": "a"})"), {});
  std::vector<std::int32_t> answer;
  std::vector<float> logits(kVocabulary);
  for (const std::string text : {"\"", "a", "\""}) {
    std::ranges::fill(logits, 0);
    edit.Apply(answer, logits);
    ASSERT_TRUE(std::ranges::any_of(logits, IsAllowed));
    EXPECT_FALSE(edit.CanEnd());
    for (std::int32_t token = 3; token < kVocabulary; ++token) {
      if (texts_->Of(token) == text) {
        answer.push_back(token);
        break;
      }
    }
  }
  std::ranges::fill(logits, 0);
  edit.Apply(answer, logits);
  EXPECT_TRUE(std::ranges::none_of(logits, IsAllowed)) << "there is no token for the end";
  EXPECT_TRUE(edit.CanEnd());
}

}  // namespace
}  // namespace qlora
