#include "serve/request_fields.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "io/json.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

// The error of what a test does; a status of 0 where there is none.
ApiError ErrorOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    return error;
  }
  return ApiError(0, "no error");
}

HttpRequest Body(const std::string& text, const std::string& type = "application/json") {
  return {.method = "POST", .path = "/", .headers = {{"content-type", type}}, .body = text};
}

TEST(RequestFields, BodiesAreObjectsOfJson) {
  EXPECT_EQ(ParseBody(Body("{\"a\": 1}"))["a"], 1);
  EXPECT_EQ(ParseBody(Body(" {} ", "application/json; charset=utf-8")), OrderedJson::object());
  for (const char* text : {"", "  ", "{", "[]", "null", "\"x\"", "5", "{} {}", "{\"a\": \xFF}"}) {
    const ApiError error = ErrorOf([&] { ParseBody(Body(text)); });
    EXPECT_EQ(error.status, 400) << text;
    EXPECT_EQ(error.param, "") << text;
  }
  std::string deep(100'000, '[');
  EXPECT_EQ(ErrorOf([&] { ParseBody(Body("{\"a\":" + deep)); }).status, 400);
  std::string many = "{\"a\":[1";
  for (std::int64_t i = 0; i < kMostBodyValues; ++i) many += ",1";
  EXPECT_EQ(ErrorOf([&] { ParseBody(Body(many + "]}")); }).status, 400);
  EXPECT_EQ(ErrorOf([] { ParseBody(Body("{}", "text/plain")); }).status, 415);
  EXPECT_EQ(ErrorOf([] { ParseBody(Body("{}", "application/x-www-form-urlencoded")); }).status,
            415);
  EXPECT_EQ(ParseBody({.method = "POST", .path = "/", .body = "{}"}), OrderedJson::object());
  HttpRequest packed = Body("{}");
  packed.headers["content-encoding"] = "gzip";
  EXPECT_EQ(ErrorOf([&] { ParseBody(packed); }).status, 415);
  packed.headers["content-encoding"] = "identity";
  EXPECT_EQ(ParseBody(packed), OrderedJson::object());
}

TEST(RequestFields, NothingIsConverted) {
  const OrderedJson json = OrderedJson::parse(
      R"({"text": "5", "number": 1.5, "whole": 5, "yes": true, "none": null, "list": [1], "object": {}})");
  const RequestFields fields(json, "body");
  EXPECT_EQ(fields.Text("text"), "5");
  EXPECT_EQ(fields.Integer("whole"), 5);
  EXPECT_EQ(fields.Number("whole", 0, 5), 5.0);
  EXPECT_EQ(fields.Number("number", 0, 5), 1.5);
  EXPECT_EQ(fields.Bool("yes"), true);
  const std::vector<std::pair<std::string, std::function<void(const char*)>>> readers = {
      {"text", [&](const char* name) { fields.Text(name); }},
      {"whole", [&](const char* name) { fields.Integer(name); }},
      {"whole number", [&](const char* name) { fields.Number(name, -1e9, 1e9); }},
      {"yes", [&](const char* name) { fields.Bool(name); }},
      {"list", [&](const char* name) { fields.List(name); }},
      {"object", [&](const char* name) { fields.Object(name); }},
  };
  for (const auto& [takes, read] : readers) {
    for (const char* name :
         {"text", "number", "whole", "yes", "none", "list", "object", "lacking"}) {
      const std::string kind = name;
      const bool is_absent = kind == "none" || kind == "lacking";
      const bool is_number = takes == "whole number" && kind == "number";
      const bool is_right = is_absent || is_number || takes.starts_with(kind);
      const ApiError error = ErrorOf([&read = read, &name] { read(name); });
      EXPECT_EQ(error.status, is_right ? 0 : 400) << name << " as " << takes;
      EXPECT_EQ(error.param, is_right ? "" : "body." + kind);
    }
  }
  EXPECT_FALSE(fields.Has("none"));
  EXPECT_EQ(ErrorOf([&] { fields.NeedText("none"); }).param, "body.none");
}

TEST(RequestFields, RangesAreWholeNumbersOfSixtyFourBits) {
  const OrderedJson json = ParseOrderedJson(
      R"({"low": -9223372036854775808, "high": 9223372036854775807, "more": 18446744073709551615,
          "wide": 99999999999999999999999, "zero": 0, "list": [1, 2, 3]})",
      "test");
  const RequestFields fields(json);
  EXPECT_EQ(fields.Integer("low"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(fields.Integer("high"), std::numeric_limits<std::int64_t>::max());
  for (const char* name : {"more", "wide"}) {
    const ApiError error = ErrorOf([&] { fields.Integer(name); });
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, name);
  }
  EXPECT_EQ(fields.Integer("zero", 0, 5), 0);
  const ApiError below = ErrorOf([&] { fields.Integer("zero", 1, 16); });
  EXPECT_EQ(below.message, "zero: expected a whole number from 1 to 16, found 0");
  EXPECT_EQ(ErrorOf([&] { fields.Number("high", 0, 100); }).status, 400);
  EXPECT_NE(fields.List("list", 1, 3), nullptr);
  EXPECT_EQ(ErrorOf([&] { fields.List("list", 4); }).status, 400);
  EXPECT_EQ(ErrorOf([&] { fields.List("list", 0, 2); }).status, 400);
}

TEST(RequestFields, TokenIdsAreOfTheVocabulary) {
  EXPECT_EQ(AsTokenIds(OrderedJson::parse("[0, 287]"), "prompt", 288),
            (std::vector<std::int32_t>{0, 287}));
  for (const char* text : {"[288]", "[-1]", "[1.5]", "[\"1\"]", "[true]", "[null]", "5"}) {
    const ApiError error = ErrorOf([&] { AsTokenIds(OrderedJson::parse(text), "prompt", 288); });
    EXPECT_EQ(error.status, 400) << text;
    EXPECT_EQ(error.param, std::string(text) == "5" ? "prompt" : "prompt[0]") << text;
  }
}

}  // namespace
}  // namespace qlora
