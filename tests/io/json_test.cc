#include "io/json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/text.h"
#include "io/test_util.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Json, ReadsTypedValues) {
  const Json json = ParseJson(
      R"({"b": true, "i": -3, "d": 2.5, "n": null, "s": "x", "l": [1, 2], "w": ["u", "v"]})", "f");
  EXPECT_TRUE(JsonGet<bool>(json, "b", "f"));
  EXPECT_EQ(JsonGet<std::int64_t>(json, "i", "f"), -3);
  EXPECT_EQ(JsonGet<double>(json, "d", "f"), 2.5);
  EXPECT_EQ(JsonGet<double>(json, "i", "f"), -3.0);
  EXPECT_EQ(JsonGet<std::string>(json, "s", "f"), "x");
  EXPECT_THAT(JsonGet<std::vector<std::int64_t>>(json, "l", "f"), ElementsAre(1, 2));
  EXPECT_THAT(JsonGet<std::vector<std::string>>(json, "w", "f"), ElementsAre("u", "v"));
  EXPECT_EQ(JsonGetOr<std::int64_t>(json, "n", 7, "f"), 7);
  EXPECT_EQ(JsonGetOr<std::int64_t>(json, "absent", 8, "f"), 8);
  EXPECT_EQ(JsonGetOr<std::int64_t>(json, "i", 8, "f"), -3);
  EXPECT_EQ(FindJson(json, "n", "f"), nullptr);
}

TEST(Json, WrongTypesNameFileAndKey) {
  const Json json = ParseJson(
      R"({"b": 1, "i": 1.5, "big": 18446744073709551615, "l": [1, "x"], "s": 3, "n": null})", "f");
  const auto message = [&](const auto& body) { return std::string(ErrorOf(body).what()); };
  EXPECT_EQ(message([&] { JsonGet<bool>(json, "b", "c.json"); }),
            "c.json: key 'b': expected true or false, found 1");
  EXPECT_EQ(message([&] { JsonGet<std::int64_t>(json, "i", "c.json"); }),
            "c.json: key 'i': expected an integer, found 1.5");
  EXPECT_EQ(message([&] { JsonGet<std::int64_t>(json, "big", "c.json"); }),
            "c.json: key 'big': expected an integer, found 18446744073709551615");
  EXPECT_EQ(message([&] { JsonGet<std::vector<std::int64_t>>(json, "l", "c.json"); }),
            "c.json: key 'l': expected an integer, found \"x\"");
  EXPECT_EQ(message([&] { JsonGet<std::vector<std::int64_t>>(json, "s", "c.json"); }),
            "c.json: key 's': expected a list, found 3");
  EXPECT_EQ(message([&] { JsonGet<std::string>(json, "l", "c.json"); }),
            "c.json: key 'l': expected a string, found an array");
  EXPECT_EQ(message([&] { JsonGet<std::string>(json, "n", "c.json"); }),
            "c.json: key 'n' is missing");
  EXPECT_EQ(message([&] { JsonGet<std::string>(Json(3), "n", "c.json"); }),
            "c.json: expected a JSON object with key 'n', found number");
}

TEST(Json, SyntaxErrorsNameLineAndColumn) {
  const Error error = ErrorOf([] { ParseJson("{\"a\": 1,\n \"b\": }", "data.jsonl:17"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(error.what(),
              HasSubstr("data.jsonl:17: not valid JSON at line 2, column 7 (byte 15)"));
  for (const char* text : {"", "{", "[1,]", "\"\xff\"", "nul", "1e999", "{} x"}) {
    EXPECT_EQ(ErrorOf([&] { ParseJson(text, "f"); }).code(), ErrorCode::kInvalidInput) << text;
  }
}

TEST(Json, DepthAndRangeAreLimitedInEveryReader) {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_NO_THROW(ParseJson(deep, "f"));
  EXPECT_NO_THROW(ParseOrderedJson(deep, "f"));
  EXPECT_NO_THROW(ParseJson("\"\\\"" + std::string(100, '{') + "\"", "f")) << "in a string";
  for (const auto duplicates : {DuplicateKeys::kLastWins, DuplicateKeys::kRefuse}) {
    ExpectRefused([&] { ParseJson("[" + deep + "]", "f", duplicates); },
                  "f: not valid JSON at line 1, column 65 (byte 64): nested more than 64 levels");
  }
  ExpectRefused([&] { ParseOrderedJson("\n[" + deep + "]", "f"); }, "line 2, column 65");
  ExpectRefused([] { ParseOrderedJson("[1,\n 1e999]", "f"); },
                "f: not valid JSON at line 2, column 2 (byte 5): number overflow");
}

TEST(Json, DuplicateKeysAreRefusedOnRequest) {
  EXPECT_EQ(ParseJson(R"({"a": 1, "a": 2})", "f")["a"], 2);
  const Error error =
      ErrorOf([] { ParseJson(R"({"x": {"a": 1, "a": 2}})", "f", DuplicateKeys::kRefuse); });
  EXPECT_THAT(error.what(), HasSubstr("key 'a' appears twice"));
  EXPECT_NO_THROW(
      ParseJson(R"([{"a": {"a": 1}}, {"a": 1}, {"b": []}])", "f", DuplicateKeys::kRefuse));
}

// The time grows with the number of keys, not with its square.
TEST(Json, ManyKeysAreCheckedForDuplicates) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("\"k{}\": [{}], ", i, i);
  const Json parsed = ParseJson(text + "\"last\": 0}", "f", DuplicateKeys::kRefuse);
  EXPECT_EQ(parsed.size(), 200'001u);
  ExpectRefused([&] { ParseJson(text + "\"k7\": 0}", "f", DuplicateKeys::kRefuse); },
                "key 'k7' appears twice");
}

TEST(Json, WritesTextThatIsNotUtf8) {
  EXPECT_EQ(FormatJson(Json("a\xFF")), "\"a\uFFFD\"");
  EXPECT_EQ(FormatJson(Json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

// Wherever they stand in a value, which otherwise reads as always.
TEST(Json, WritesNumbersBeyond64BitsAsTheyAre) {
  const std::string digits = "-123456789012345678901234567890";
  for (const std::string& text :
       {digits, "[" + digits + "]",
        R"({"a":{"b":[1,2.5,null,)" + digits + R"(],"c":{},"d":"\u0001\"é"}})",
        R"([[],[{"id":)" + digits + R"(},true]])"}) {
    OrderedJson value;
    ASSERT_FALSE(TryParseJson(text, value)) << text;
    EXPECT_EQ(FormatJson(value), text);
    std::string indented = FormatJson(value, 2);
    const OrderedJson plain = OrderedJson::parse(ReplaceAll(text, digits, "7"));
    EXPECT_EQ(ReplaceAll(indented, digits, "7"), FormatJson(plain, 2));
  }
}

TEST(Json, ReprIsPythons) {
  // What Python 3 prints for repr(x).
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {6.0, "6.0"},
      {0.0123, "0.0123"},
      {1e-5, "1e-05"},
      {1e-4, "0.0001"},
      {0.00012345, "0.00012345"},
      {9.999e-5, "9.999e-05"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {0.1, "0.1"},
      {static_cast<double>(0.1f), "0.10000000149011612"},
      {5e-324, "5e-324"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {-2.5, "-2.5"},
      {9007199254740993.0, "9007199254740992.0"},
      {1e100, "1e+100"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(PythonRepr(value), text);
}

// A value takes many times the bytes of its text.
TEST(Json, LimitsTheNumberOfValues) {
  const auto lists = [](std::int64_t count) {
    std::string text = "[";
    for (std::int64_t i = 1; i < count; ++i) text += i + 1 < count ? "[]," : "[]";
    return text + "]";
  };
  OrderedJson record;
  const auto defect = TryParseJson(lists(kMaxOrderedValues), record);
  ASSERT_TRUE(defect.has_value());
  EXPECT_EQ(defect->reason, "more than 1048576 values");
  // Commas in texts are none.
  EXPECT_FALSE(TryParseJson("[\"" + std::string(2 * kMaxOrderedValues, ',') + "\"]", record));
  EXPECT_THAT(ErrorOf([&] { ParseJson(lists(kMaxJsonValues), "config.json"); }).what(),
              HasSubstr("config.json: not valid JSON at line 1"));
  EXPECT_FALSE(TryParseJson(lists(kMaxOrderedValues / 2), record));
}

}  // namespace
}  // namespace qlora
