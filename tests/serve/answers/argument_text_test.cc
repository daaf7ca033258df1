// Arguments of calls as JSON.
#include "serve/answers/argument_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace qlora {
namespace {

TEST(ArgumentText, LiteralsOfPythonAndOfGemmaBecomeJson) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1", "1"},
      {"-1.5e3", "-1.5e3"},
      {" True ", "true"},
      {"None", "null"},
      {"null", "null"},
      {"'it\\'s \"q\"'", R"("it's \"q\"")"},
      {R"("a\n\x41\u00e9\ud83d\ude00\d")", R"("a\nAé😀\\d")"},
      {"[1, 'a', (2, [],), ]", R"([1, "a", [2, []]])"},
      {"{'a': {'b': None}, \"c\": ()}", R"({"a": {"b": null}, "c": []})"},
      {R"({a:<|"|>b'}<|"|>,c:true})", R"({"a": "b'}", "c": true})"},
  };
  for (const auto& [text, json] : cases) EXPECT_EQ(JsonOfLiteral(text), json) << text;
  for (const std::string text :
       {"", "word", "'open", "[1", "{'a'}", "{a b}", "1 2", "01", "'\\ud800'", "'\\x1'", "f(1)"}) {
    EXPECT_EQ(JsonOfLiteral(text), std::nullopt) << text;
  }
  EXPECT_EQ(JsonOfLiteral(std::string(1000, '[')), std::nullopt);
}

TEST(ArgumentText, TypesOfSchemasSayWhatPlainTextIs) {
  const ArgumentTypes types(R"([{"function": {"name": "f", "parameters": {"properties": {
    "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "number": {"type": "number"}, "either": {"type": ["string", "integer"]},
    "kind": {"enum": ["a", "b"]}, "open": {}}}}}, 5, {"function": {}}])");
  EXPECT_EQ(types.Of("f", "text"), ArgumentType::kText);
  EXPECT_EQ(types.Of("f", "maybe"), ArgumentType::kTextOrNull);
  EXPECT_EQ(types.Of("f", "number"), ArgumentType::kValue);
  EXPECT_EQ(types.Of("f", "either"), ArgumentType::kUnknown);
  EXPECT_EQ(types.Of("f", "kind"), ArgumentType::kText);
  EXPECT_EQ(types.Of("f", "open"), ArgumentType::kUnknown);
  EXPECT_EQ(types.Of("f", "other"), ArgumentType::kUnknown);
  EXPECT_TRUE(types.HasTool("f"));
  EXPECT_TRUE(ArgumentTypes(R"([{"function": {"name": "bare"}}])").HasTool("bare"));
  EXPECT_FALSE(types.HasTool("g"));
  EXPECT_EQ(types.Of("g", "text"), ArgumentType::kUnknown);
  EXPECT_EQ(ArgumentTypes("no JSON").Of("f", "text"), ArgumentType::kUnknown);

  const ArgumentTypes refers(R"([{"function": {"name": "f", "parameters": {"properties": {
    "year": {"$ref": "#/$defs/Year", "description": "d"}, "one": {"allOf": [{"$ref": "#/$defs/Year"}]},
    "maybe": {"anyOf": [{"$ref": "#/%24defs/Year"}, {"const": null}]}, "fixed": {"const": "1"},
    "count": {"const": 1}, "two": {"allOf": [{"type": "string"}, {}]}, "gone": {"$ref": "#/no"},
    "tree": {"$ref": "#/$defs/Tree"}, "loop": {"$ref": "#/properties/loop"}},
    "$defs": {"Year": {"type": "string", "enum": ["2024", "2025"]},
              "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "string"}]}}}}}])");
  for (const char* text : {"year", "one", "fixed", "tree"}) {
    EXPECT_EQ(refers.Of("f", text), ArgumentType::kText) << text;
  }
  for (const char* unknown : {"two", "gone", "loop"}) {
    EXPECT_EQ(refers.Of("f", unknown), ArgumentType::kUnknown) << unknown;
  }
  EXPECT_EQ(refers.Of("f", "maybe"), ArgumentType::kTextOrNull);
  EXPECT_EQ(refers.Of("f", "count"), ArgumentType::kValue);

  EXPECT_EQ(JsonOfArgument("12", ArgumentType::kText), R"("12")");
  EXPECT_EQ(JsonOfArgument("12", ArgumentType::kValue), "12");
  EXPECT_EQ(JsonOfArgument("many", ArgumentType::kValue), R"("many")");
  EXPECT_EQ(JsonOfArgument("null", ArgumentType::kTextOrNull), "null");
  EXPECT_EQ(JsonOfArgument("12", ArgumentType::kTextOrNull), R"("12")");
  EXPECT_EQ(JsonOfArgument("12", ArgumentType::kUnknown), "12");
  EXPECT_EQ(JsonOfArgument("\"12\"", ArgumentType::kUnknown), R"("\"12\"")");
  EXPECT_EQ(JsonOfArgument("a b", ArgumentType::kUnknown), R"("a b")");
}

TEST(ArgumentText, ArgumentsThatAreCutBecomeAnObject) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "{}"},
      {"{", "{}"},
      {R"({"a": 1})", R"({"a": 1})"},
      {R"({"a": 1)", R"({"a": 1})"},
      {R"({"a": 1,)", R"({"a": 1})"},
      {R"({"a": "b)", R"({"a": "b"})"},
      {R"({"a": "b\)", R"({"a": "b"})"},
      {R"({"a": "b\u)", R"({"a": "b"})"},
      {R"({"a": "b\u00e)", R"({"a": "b"})"},
      {R"({"a": "b\u00e9)", R"({"a": "b\u00e9"})"},
      {R"({"a": "b\ud83d)", R"({"a": "b"})"},
      {R"({"a": "b\ud83d\ude0)", R"({"a": "b"})"},
      {R"({"a": "b\ud83d\ude00)", R"({"a": "b\ud83d\ude00"})"},
      {R"({"a": "\uX)", R"({"arguments":"{\"a\": \"\\uX"})"},
      {R"({"a": [1, {"b": "c)", R"({"a": [1, {"b": "c"}]})"},
      {R"({"a":)", R"({"a":null})"},
      {R"({"a)", R"({"a": null})"},
      {R"({"a": -)", R"({"a": -0})"},
      {"not JSON", R"({"arguments":"not JSON"})"},
      {"[1]", R"({"arguments":"[1]"})"},
  };
  for (const auto& [text, json] : cases) EXPECT_EQ(WholeArguments(text), json) << text;
}

}  // namespace
}  // namespace qlora
