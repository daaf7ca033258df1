// The table of routes, and those beside chat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using RouteTableTest = RoutesTest;

std::string HeaderOf(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST_F(RouteTableTest, PathsHaveValues) {
  HttpRequest seen;
  routes_.AddQuick("GET", "/v1/boxes/{id}/content",
                   [&](const HttpRequest& request, const HttpReplyPtr& reply) {
                     seen = request;
                     reply->Send({});
                   });
  Ask("GET", "/v1/boxes/box-5/content");
  EXPECT_EQ(seen.values["id"], "box-5");
  for (const char* path : {"/v1/boxes//content", "/v1/boxes/content", "/v1/boxes/a/b/content",
                           "/v1/boxes/a/content/", "/v1/boxes/a", "v1/boxes/a/content", ""}) {
    EXPECT_EQ(Ask("GET", path)->response.status, 404) << path;
  }
}

// Whatever a route reads a template for.
TEST_F(RouteTableTest, ClientsAreToldOfNoFolder) {
  std::string text;
  routes_.Add("GET", "/fault", [&](const HttpRequest&, const HttpReplyPtr&) {
    throw Error(ErrorCode::kInvalidInput, text);
  });
  const std::pair<const char*, const char*> told[] = {
      {"/a b/c.jinja:1:19: refuses x/y: z", "c.jinja:1:19: refuses x/y: z"},
      {"chat: ../c.jinja:12:3: no", "chat: c.jinja:12:3: no"},
      {"c.jinja:1:1: a/b", "c.jinja:1:1: a/b"},
      {"tools: a/b at 1:2", "tools: a/b at 1:2"},
      {"a: b/c: 10:20: d", "a: b/c: 10:20: d"},
  };
  for (const auto& [thrown, said] : told) {
    text = thrown;
    EXPECT_EQ(ErrorOf(*Ask("GET", "/fault"))["message"], said);
  }
}

TEST_F(RouteTableTest, UnknownPathsAndMethodsSayWhatThereIs) {
  const auto unknown = Ask("POST", "/v1/no-such-route", "{}");
  EXPECT_EQ(unknown->response.status, 404);
  EXPECT_THAT(ErrorOf(*unknown)["message"].get<std::string>(), HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(Ask("POST", "/v1/embeddings", "{}")->response.status, 501);
  const auto other = Ask("GET", "/v1/chat/completions");
  EXPECT_EQ(other->response.status, 405);
  EXPECT_EQ(HeaderOf(other->response, "Allow"), "OPTIONS, POST");
  EXPECT_TRUE(ErrorOf(*other)["message"].is_string());
}

TEST_F(RouteTableTest, WhatRoutesThrowIsAnswered) {
  routes_.Add("GET", "/bad", [](const HttpRequest&, const HttpReplyPtr&) {
    throw Error(ErrorCode::kInvalidInput, "the template says no");
  });
  routes_.Add("GET", "/worse", [](const HttpRequest&, const HttpReplyPtr&) {
    throw Error(ErrorCode::kRuntime, "secret of the disk");
  });
  const auto bad = Ask("GET", "/bad");
  EXPECT_EQ(bad->response.status, 400);
  EXPECT_EQ(ErrorOf(*bad)["message"], "the template says no");
  const auto worse = Ask("GET", "/worse");
  EXPECT_EQ(worse->response.status, 500);
  EXPECT_EQ(ErrorOf(*worse)["type"], "server_error");
  EXPECT_THAT(worse->body, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(log_, HasSubstr("secret of the disk"));
}

TEST_F(RouteTableTest, AnthropicsPathsHaveItsErrors) {
  const HttpResponse response =
      ErrorResponse({.path = "/v1/messages", .id = "r9"}, ApiError(404, "no model", "model"));
  EXPECT_EQ(Json::parse(response.body),
            (Json{{"type", "error"},
                  {"error", {{"type", "not_found_error"}, {"message", "model: no model"}}},
                  {"request_id", "r9"}}));
  EXPECT_EQ(HeaderOf(response, "request-id"), "r9");
  const Json too_long = Json::parse(AnthropicError(ContextExceeded(64, "80 tokens"), "r9").body);
  EXPECT_EQ(too_long["error"]["message"],
            "prompt is too long: this model's maximum context length is 64 tokens, and the prompt "
            "has 80 tokens: shorten it, and leave room for the answer");
  EXPECT_EQ(HeaderOf(ErrorResponse({.path = "/v1/models"}, ApiError(429, "full")), "Retry-After"),
            "1");
}

TEST_F(RouteTableTest, ModelsAreListedWithoutPaths) {
  const OrderedJson list = Ask("GET", "/v1/models")->json();
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_TRUE(list["data"][0]["parent"].is_null());
  EXPECT_EQ(list["data"][1]["parent"], "tiny");
  EXPECT_EQ(list["data"][1]["max_model_len"], 128);
  EXPECT_EQ(Ask("GET", "/v1/models/ada")->json(), list["data"][1]);
  EXPECT_EQ(Ask("GET", "/v1/models/none")->response.status, 404);
}

TEST_F(RouteTableTest, HealthAndMetrics) {
  EXPECT_EQ(Ask("GET", "/health")->json(), (OrderedJson{{"status", "ok"}}));
  EXPECT_THAT(Ask("GET", "/metrics")->body, HasSubstr("# TYPE qlora_requests_total counter"));
  EXPECT_THAT(Ask("GET", "/metrics")->body,
              HasSubstr("qlora_requests_total{model=\"\",route=\"/health\",status=\"200\"} 1"));
  server_.stops = true;
  const auto reply = Ask("GET", "/v1/health");
  EXPECT_EQ(reply->response.status, 503);
  EXPECT_EQ(ErrorOf(*reply)["code"], "stopping");
}

TEST_F(RouteTableTest, TextsAndTokens) {
  for (const std::string text :
       {"Hello, world", "na\u00efve \u6f22\u5b57 \U0001F600", "", " two  spaces ", "<s> </s>"}) {
    const Json tokens = Post("/tokenize", {{"content", text}, {"parse_special", false}})->json();
    ASSERT_TRUE(tokens["tokens"].is_array()) << text;
    EXPECT_EQ(tokens["count"], tokens["tokens"].size());
    EXPECT_EQ(tokens["max_model_len"], 128);
    const std::string back = Post("/detokenize", {{"tokens", tokens["tokens"]}})->json()["content"];
    EXPECT_EQ(back, text);
  }
  const Json special = Post("/tokenize", {{"content", "</s>"}})->json();
  EXPECT_EQ(special["tokens"], Json::array({2}));
  EXPECT_EQ(Post("/tokenize", {{"prompt", "</s>"}, {"add_special_tokens", true}})->json()["tokens"],
            OrderedJson::array({1, 2}));
  const Json bos = Post("/tokenize", {{"content", "</s>"}, {"add_special", true}})->json();
  EXPECT_EQ(bos["tokens"], Json::array({1, 2}));
  const Json pieces = Post("/tokenize", {{"content", "\u00e9"}, {"with_pieces", true}})->json();
  EXPECT_TRUE(pieces["tokens"][0].contains("piece"));
  for (const char* body : {R"({"content": 5})", "{}", R"({"content": "x", "add_special": 1})",
                           R"({"content": "x", "model": 5})"}) {
    EXPECT_EQ(Ask("POST", "/tokenize", body)->response.status, 400) << body;
  }
  for (const char* body : {R"({"tokens": [288]})", R"({"tokens": 5})", "{}", R"({"tokens": [1e9]})",
                           R"({"tokens": ["1"]})"}) {
    EXPECT_EQ(Ask("POST", "/detokenize", body)->response.status, 400) << body;
  }
  const Json prompt =
      Post("/apply-template", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}})->json();
  EXPECT_EQ(prompt["prompt"], "<s>[user]Hi[assistant]");
}

TEST_F(RouteTableTest, AdaptersAreLoadedFromBeneathOneFolder) {
  const auto load = [&](const std::string& name, const std::string& path) {
    return Post("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", path}})
        ->response.status;
  };
  EXPECT_EQ(load("new", "one"), 404) << "without --adapter_dir";
  TemporaryFolder adapters;
  std::filesystem::create_directories(adapters.path() / "one" / "two");
  std::filesystem::create_directory_symlink("/etc", adapters.path() / "out");
  options_.adapter_dir = adapters.path().string();
  EXPECT_EQ(load("new", "one/two"), 200);
  ASSERT_EQ(models_.loaded.size(), 1u);
  EXPECT_TRUE(models_.loaded[0].second.ends_with("one/two"));
  for (const char* path : {"", ".", "..", "../", "/etc", "one/../..", "none", "out", "out/ssh"}) {
    EXPECT_EQ(load("new", path), 400) << path;
  }
  for (const char* name : {"", "a/b", ".hidden", "a b"}) EXPECT_EQ(load(name, "one"), 400) << name;
  EXPECT_EQ(Post("/v1/unload_lora_adapter", {{"lora_name", "new"}})->response.status, 200);
  EXPECT_THAT(models_.unloaded, ElementsAre("new"));
  EXPECT_EQ(Post("/v1/unload_lora_adapter", OrderedJson::object())->response.status, 400);
}

}  // namespace
}  // namespace qlora
