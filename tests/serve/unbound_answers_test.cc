// What no answer is bound to: every interface refuses it by its name, in the same words.
#include "serve/requests/unbound_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/serve_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class UnboundAnswersTest : public RoutesTest {
 protected:
  UnboundAnswersTest() {
    AddResponseRoutes(table, server);
    AddMessageRoutes(table, server);
  }
};

struct Interface {
  std::string path;
  Json request;
};
const std::vector<Interface>& Interfaces() {
  static const std::vector<Interface> all = {
      {"/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "x"}}}}}},
      {"/v1/completions", {{"prompt", "x"}}},
      {"/v1/responses", {{"input", "x"}}},
      {"/v1/messages",
       {{"model", "tiny"},
        {"messages", {{{"role", "user"}, {"content", "x"}}}},
        {"max_tokens", 5}}},
  };
  return all;
}

TEST_F(UnboundAnswersTest, FormsAreRefused) {
  const Json schema = {{"type", "json_schema"}, {"json_schema", {{"name", "s"}}}};
  const std::vector<std::pair<std::string, Json>> forms = {
      {"response_format.type", {{"response_format", schema}}},
      {"response_format.type", {{"response_format", {{"type", "json_object"}}}}},
      {"text.format.type", {{"text", {{"format", schema}}}}},
      {"output_config.format.type", {{"output_config", {{"format", schema}}}}},
      {"output_format", {{"output_format", schema}}},
      {"grammar", {{"grammar", "root ::= \"a\""}}},
      {"json_schema", {{"json_schema", Json::object()}}},
      {"guided_json", {{"guided_json", Json::object()}}},
      {"guided_regex", {{"guided_regex", "a+"}}},
      {"guided_choice", {{"guided_choice", {"a", "b"}}}},
      {"structured_outputs", {{"structured_outputs", {{"choice", {"a"}}}}}},
  };
  for (const auto& [path, request] : Interfaces()) {
    for (const auto& [name, fields] : forms) {
      Json body = request;
      body.update(fields);
      const auto reply = Ask("POST", path, body.dump());
      EXPECT_EQ(reply->response.status, 400) << path << " " << name;
      EXPECT_THAT(ErrorOf(*reply)["message"].get<std::string>(),
                  testing::AllOf(testing::StartsWith(name + ": "),
                                 HasSubstr("an answer cannot be held to a form here")))
          << path;
    }
  }
  EXPECT_TRUE(generation.requests.empty());
}

TEST_F(UnboundAnswersTest, NoFormIsNone) {
  for (const auto& [path, request] : Interfaces()) {
    for (const Json& fields :
         {Json{{"response_format", {{"type", "text"}}}}, Json{{"response_format", nullptr}},
          Json{{"text", {{"format", {{"type", "text"}}}}}}, Json{{"text", {{"verbosity", "low"}}}},
          Json{{"grammar", ""}}}) {
      Json body = request;
      body.update(fields);
      EXPECT_EQ(Ask("POST", path, body.dump())->response.status, 200) << path << fields;
    }
  }
}

TEST_F(UnboundAnswersTest, CallsAreNotForced) {
  const std::vector<std::pair<std::string, std::vector<Json>>> choices = {
      {"/v1/chat/completions",
       {"required",
        {{"type", "function"}, {"function", {{"name", "f"}}}},
        {{"type", "allowed_tools"}}}},
      {"/v1/responses", {"required", {{"type", "function"}, {"name", "f"}}}},
      {"/v1/messages", {{{"type", "any"}}, {{"type", "tool"}, {"name", "f"}}}},
  };
  for (const auto& [path, request] : Interfaces()) {
    for (const auto& [of, forced] : choices) {
      for (const Json& choice : forced) {
        if (of != path) continue;
        Json body = request;
        body["tool_choice"] = choice;
        const auto reply = Ask("POST", path, body.dump());
        EXPECT_EQ(reply->response.status, 400) << path << choice;
        EXPECT_EQ(ErrorOf(*reply)["message"],
                  "tool_choice: only auto and none are offered: a call cannot be forced")
            << path;
      }
    }
  }
}

}  // namespace
}  // namespace qlora
