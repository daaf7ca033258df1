// Forms of answers in all interfaces: each has its own name for them, and refuses those of others.
#include "serve/requests/answer_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

struct Interface {
  std::string path;
  std::string own;  // its name for a form
  Json request;
};
const std::vector<Interface>& Interfaces() {
  static const std::vector<Interface> all = {
      {"/v1/chat/completions",
       "response_format",
       {{"messages", {{{"role", "user"}, {"content", "x"}}}}}},
      {"/v1/completions", "response_format", {{"prompt", "x"}}},
      {"/v1/responses", "text.format", {{"input", "x"}}},
      {"/v1/messages",
       "output_config.format",
       {{"model", "tiny"},
        {"messages", {{{"role", "user"}, {"content", "x"}}}},
        {"max_tokens", 5}}},
  };
  return all;
}

class AnswerFormatTest : public RoutesTest {
 protected:
  std::shared_ptr<FakeReply> With(const Interface& of, const Json& fields) {
    service_.requests.clear();
    Json body = of.request;
    body.update(fields);
    return Ask("POST", of.path, body.dump());
  }
};

TEST_F(AnswerFormatTest, EachInterfaceHasItsName) {
  const Json schema = {{"type", "json_schema"},
                       {"json_schema", {{"name", "s"}, {"schema", {{"type", "null"}}}}}};
  const std::vector<std::pair<std::string, Json>> forms = {
      {"response_format", {{"response_format", schema}}},
      {"text.format", {{"text", {{"format", schema}}}}},
      {"output_config.format", {{"output_config", {{"format", schema}}}}},
      {"grammar", {{"grammar", "root ::= \"a\""}}},
      {"json_schema", {{"json_schema", Json::object()}}},
      {"guided_json", {{"guided_json", Json::object()}}},
      {"guided_regex", {{"guided_regex", "a+"}}},
      {"guided_choice", {{"guided_choice", {"a", "b"}}}},
      {"structured_outputs", {{"structured_outputs", {{"choice", {"a"}}}}}},
  };
  for (const Interface& of : Interfaces()) {
    for (const auto& [name, fields] : forms) {
      const auto reply = With(of, fields);
      const std::string what = of.path + " " + name + ": " + reply->body;
      if (name == of.own) {
        EXPECT_EQ(reply->response.status, 200) << what;
        ASSERT_EQ(service_.requests.size(), 1u) << what;
        EXPECT_NE(service_.requests[0].format.grammar, nullptr) << what;
        continue;
      }
      EXPECT_EQ(reply->response.status, 400) << what;
      EXPECT_THAT(ErrorOf(*reply)["message"].get<std::string>(),
                  testing::AllOf(testing::StartsWith(name + ": "), testing::HasSubstr(of.own)))
          << what;
    }
  }
}

// What keeps an answer from ending with its form, or leaves no token to go on with. A stop text
// cuts it, as elsewhere.
TEST_F(AnswerFormatTest, WhatWouldBreakTheFormIsRefused) {
  for (const Interface& of : Interfaces()) {
    Json form = {{"type", "json_object"}};
    Json fields = {{of.own, form}};
    if (const std::size_t dot = of.own.find('.'); dot != std::string::npos) {
      fields = {{of.own.substr(0, dot), {{of.own.substr(dot + 1), form}}}};
    }
    for (const auto& [name, value] : std::vector<std::pair<std::string, Json>>{
             {"min_tokens", 2}, {"ignore_eos", true}, {"logit_bias", {{"5", -100}}}}) {
      Json both = fields;
      both[name] = value;
      const auto reply = With(of, both);
      EXPECT_EQ(reply->response.status, 400) << of.path << name;
      EXPECT_THAT(ErrorOf(*reply)["message"].get<std::string>(), testing::StartsWith(name + ": "));
      EXPECT_EQ(With(of, {{name, value}})->response.status, 200) << of.path << name;
    }
    // What forbids no token goes together with a form.
    fields["logit_bias"] = {{"5", -99}, {"6", 100}};
    EXPECT_EQ(With(of, fields)->response.status, 200) << of.path;
    if (of.path == "/v1/responses") continue;  // which has no stop texts
    fields[of.path == "/v1/messages" ? "stop_sequences" : "stop"] = {"\"}]"};
    EXPECT_EQ(With(of, fields)->response.status, 200) << of.path;
    ASSERT_EQ(service_.requests.size(), 1u);
    EXPECT_EQ(service_.requests[0].stops.size(), 1u);
    EXPECT_NE(service_.requests[0].format.grammar, nullptr);
  }
}

TEST_F(AnswerFormatTest, NoFormIsNone) {
  for (const Interface& of : Interfaces()) {
    for (const Json& fields :
         {Json{{"response_format", {{"type", "text"}}}}, Json{{"response_format", nullptr}},
          Json{{"text", {{"format", {{"type", "text"}}}}}}, Json{{"text", {{"verbosity", "low"}}}},
          Json{{"grammar", ""}}}) {
      EXPECT_EQ(With(of, fields)->response.status, 200) << of.path << fields;
      EXPECT_EQ(service_.requests.at(0).format.grammar, nullptr);
    }
  }
}

// A schema that is not read would be a promise that is not kept.
TEST_F(AnswerFormatTest, WhatIsNotReadIsRefused) {
  const Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (const Json& format : {Json{{"type", "json_object"}, {"value", schema}},
                             Json{{"type", "json_object"}, {"json_schema", {{"schema", schema}}}},
                             Json{{"type", "text"}, {"schema", schema}},
                             Json{{"type", "json_schema"}, {"schema", schema}, {"strict", "yes"}},
                             Json{{"type", "json_schema"}, {"schema", schema}, {"name", 5}},
                             Json{{"type", "json_schema"}, {"schema", schema}, {"pattern", "a"}}}) {
    for (const Interface& of : Interfaces()) {
      Json fields = {{of.own, format}};
      if (const std::size_t dot = of.own.find('.'); dot != std::string::npos) {
        fields = {{of.own.substr(0, dot), {{of.own.substr(dot + 1), format}}}};
      }
      EXPECT_EQ(With(of, fields)->response.status, 400) << of.path << fields;
    }
  }
}

// A small schema may be a large grammar, of each request that waits.
TEST_F(AnswerFormatTest, FormsOfWaitingRequestsHaveABoundedRoom) {
  const std::shared_ptr<RequestRoom> room = models_.Find("")->room;
  const Json form = {{"response_format",
                      {{"type", "json_schema"},
                       {"json_schema", {{"schema", {{"type", "string"}, {"maxLength", 1000}}}}}}}};
  {
    HeldBytes one(room), two(room);
    one.Add(room->most / 2, "", "");
    two.Add(room->most / 2 - 1000, "", "");
    EXPECT_EQ(With(Interfaces()[0], form)->response.status, 429);
    EXPECT_THROW(two.Add(1001, "field", "ask for less"), ApiError) << "its own half";
  }
  EXPECT_EQ(With(Interfaces()[0], form)->response.status, 200);
  EXPECT_GT(room->held, 1000u);
  service_.requests.clear();
  EXPECT_EQ(room->held, 0u);
}

}  // namespace
}  // namespace qlora
