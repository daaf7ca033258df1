// What /apply-template and /tokenize say that a model reads, beside what a chat gives it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/routes/route_test_util.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const OrderedJson kAsk = {{"messages", {{{"role", "user"}, {"content", "What?"}}}}};
const OrderedJson kTools = {
    {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", kWeatherSchema}}}}};

using TokenRoutesTest = TalkerTest;

TEST_F(TokenRoutesTest, AConversationIsReadAsAChatReadsIt) {
  for (const OrderedJson& fields : std::vector<OrderedJson>{
           OrderedJson::object(),
           {{"tools", kTools}},
           {{"tools", kTools}, {"tool_choice", "none"}},
           {{"reasoning_effort", "none"}},
           {{"chat_template_kwargs", {{"enable_thinking", false}}}},
           {{"add_generation_prompt", true}, {"max_tokens", 5}, {"stream", true}}}) {
    Ask("/v1/chat/completions", With(With(kAsk, fields), {{"stream", false}}));
    ASSERT_EQ(service_.requests.size(), 1u) << fields << answer_.body;
    const std::string prompt = Prompt();
    const OrderedJson tokens = std::vector<std::int32_t>(service_.requests[0].prompt);
    service_.Answer({"Fine"});
    service_.requests.clear();
    Ask("/apply-template", With(kAsk, fields));
    EXPECT_EQ(answer_.json()["prompt"], prompt) << fields;
    Ask("/tokenize", With(kAsk, fields));
    EXPECT_EQ(answer_.json()["tokens"], tokens) << fields;
  }
}

TEST_F(TokenRoutesTest, PiecesOfALongerTextThanTheContextAreRefused) {
  OrderedJson body = {{"content", std::string(5000, '7')}};
  Ask("/tokenize", body);
  const OrderedJson whole = answer_.json();
  ASSERT_GT(whole["count"], 4096);
  EXPECT_EQ(whole["tokens"].size(), whole["count"]);
  body["with_pieces"] = true;
  Ask("/tokenize", body);
  EXPECT_EQ(answer_.json()["error"]["code"], "context_length_exceeded");
  body["content"] = "77";
  Ask("/tokenize", body);
  EXPECT_EQ(answer_.json()["tokens"][0]["piece"], "7");
}

// Whatever characters the text has.
TEST_F(TokenRoutesTest, SpellingsOfSpecialTokensCanBeText) {
  const auto count = [&](const std::string& text, bool parses) {
    Ask("/tokenize", OrderedJson{{"content", text}, {"parse_special", parses}});
    return answer_.json()["count"].get<std::int64_t>();
  };
  const std::string special = "<|im_end|>";
  std::string many;
  for (char32_t c = 0xE000; c < 0xE100; ++c) AppendUtf8(c, &many);
  for (const std::string& before : {std::string(), std::string("\xEE\x80\x80"), many}) {
    const std::int64_t alone = count(before, true);
    EXPECT_EQ(count(before + special, true), alone + 1);
    EXPECT_EQ(count(before + special, false), alone + std::ssize(special));
  }
}

TEST_F(TokenRoutesTest, WhatWouldChangeThePromptIsRefused) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, OrderedJson>>{{"tools", 5},
                                                        {"tool_choice", "required"},
                                                        {"reasoning_effort", 5},
                                                        {"documents", {{{"text", "x"}}}},
                                                        {"add_special_tokens", true},
                                                        {"add_generation_prompt", false},
                                                        {"continue_final_message", true},
                                                        {"chat_template", "x"}}) {
    for (const char* path : {"/apply-template", "/tokenize"}) {
      Ask(path, With(kAsk, {{name, value}}));
      EXPECT_EQ(answer_.response.status, 400) << path << name;
      EXPECT_THAT(answer_.json()["error"]["param"].get<std::string>(), StartsWith(name)) << path;
    }
  }
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, bool>>{{"add_special", true}, {"parse_special", false}}) {
    Ask("/tokenize", With(kAsk, {{name, value}}));
    EXPECT_EQ(answer_.json()["error"]["param"], name);
  }
}

}  // namespace
}  // namespace qlora
