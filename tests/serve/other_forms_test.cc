// Names of other servers for a form of the answer: every interface refuses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/serve_fixture.h"

namespace qlora {
namespace {

class OtherFormsTest : public RoutesTest {
 protected:
  OtherFormsTest() {
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

TEST_F(OtherFormsTest, AreRefusedByName) {
  const std::vector<std::pair<std::string, Json>> forms = {
      {"grammar", "root ::= \"a\""},
      {"json_schema", Json::object()},
      {"guided_json", Json::object()},
      {"guided_regex", "a+"},
      {"guided_choice", {"a", "b"}},
      {"guided_grammar", "a"},
      {"structured_outputs", {{"choice", {"a"}}}},
  };
  for (const auto& [path, request] : Interfaces()) {
    for (const auto& [name, form] : forms) {
      Json body = request;
      body[name] = form;
      const auto reply = Ask("POST", path, body.dump());
      EXPECT_EQ(reply->response.status, 400) << path << " " << name;
      EXPECT_THAT(ErrorOf(*reply)["message"].get<std::string>(), testing::StartsWith(name + ": "))
          << path;
    }
  }
  EXPECT_TRUE(generation.requests.empty());
}

TEST_F(OtherFormsTest, EmptyOnesDoNoHarm) {
  for (const auto& [path, request] : Interfaces()) {
    for (const Json& nothing : {Json(""), Json(nullptr)}) {
      Json body = request;
      body["grammar"] = nothing;
      EXPECT_EQ(Ask("POST", path, body.dump())->response.status, 200) << path;
    }
  }
}

}  // namespace
}  // namespace qlora
