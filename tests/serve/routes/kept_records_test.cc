// What a server keeps of its answers, read as training reads it: the prompt is the one that the
// model was given, and what is trained is the answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "serve/request_log.h"
#include "serve/routes/route_test_util.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Shows whether it is to think, before all messages.
const std::string kTemplate =
    "{% if enable_thinking is defined %}{{ '<|im_start|>thinks: ' ~ enable_thinking ~ '<|im_end|>' "
    "}}"
    "{% endif %}" +
    std::string(kTalkingTemplate).substr(0, std::string(kTalkingTemplate).rfind("{%- if enable")) +
    "{%- endif %}";

const OrderedJson kHello = {{{"role", "user"}, {"content", "Hello"}}};
const OrderedJson kFunction = {{"name", "get_weather"}, {"parameters", kWeatherSchema}};
const OrderedJson kTools = {{{"type", "function"}, {"function", kFunction}}};
const OrderedJson kChat = {{"messages", kHello}, {"tools", kTools}};
constexpr const char* kCutCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"ž";

// A sample as texts: what is read, and what is trained.
using Trained = std::pair<std::string, std::string>;

class KeptRecordsTest : public TalkerTest {
 protected:
  KeptRecordsTest() : TalkerTest(kTemplate) {}
  ~KeptRecordsTest() override { server_.request_log = nullptr; }

  // Answers a request, of which nothing was kept before.
  void Keep(const std::string& path, const OrderedJson& body,
            const std::vector<std::string>& pieces, GenerationEnd end = {}) {
    folder_.emplace();
    kept_.emplace(folder_->path(), workers_, server_.log, [] { return 0; });
    server_.request_log = &*kept_;
    Ask(path, body);
    ASSERT_EQ(answer_.body, "") << "refused";
    prompt_ = Prompt();
    service_.Answer(pieces, std::move(end));
    id_ = answer_.json()["id"];
  }
  int Mark(const OrderedJson& mark) {
    Ask("/v1/feedback", With({{"id", id_}}, mark));  // also waits for what is written
    return answer_.response.status;
  }

  // The samples of a file, labels of their answers beside them.
  std::vector<std::pair<Trained, bool>> Read(const std::string& kind, bool has_labels) const {
    DataOptions options;
    DataSource source;
    source.path = folder_->path() / (kind + "-1970-01-01.jsonl");
    if (!Exists(source.path) || ReadTextFile(source.path).empty()) return {};
    options.sources.push_back(std::move(source));
    if (has_labels) options.preference.form = PreferenceForm::kLabels;
    if (kind.starts_with("texts")) options.layout.choice = LayoutChoice::kText;
    const ServedModelPtr model = models_.Find("");
    const Dataset data = Dataset::Open(options, *model->tokenizer, model->prompts->chat());
    std::vector<std::pair<Trained, bool>> all;
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const Sample sample = data.Get(i);
      Ids read;
      Ids trained;
      for (std::size_t t = 0; t < sample.ids.size(); ++t) {
        (sample.labels[t] == kIgnoreLabel ? read : trained).push_back(sample.ids[t]);
      }
      all.push_back(
          {{model->tokenizer->Decode(read, false), model->tokenizer->Decode(trained, false)},
           sample.desirable});
    }
    return all;
  }
  std::vector<Trained> Read(const std::string& kind) {
    Mark({});  // waits
    std::vector<Trained> all;
    for (const auto& [trained, label] : Read(kind, false)) all.push_back(trained);
    return all;
  }

  std::optional<TemporaryFolder> folder_;
  std::optional<RequestLog> kept_;
  std::string prompt_;
  std::string id_;
};

TEST_F(KeptRecordsTest, ChatsAreTrainedAsTheyWereAnswered) {
  struct Case {
    const char* path;
    OrderedJson body;
    std::vector<std::string> pieces;
    std::string trained;
  };
  const OrderedJson off = {{"enable_thinking", false}};
  const OrderedJson message = {{"model", "talker"}, {"max_tokens", 9}, {"messages", kHello}};
  const std::vector<Case> cases = {
      {"/v1/chat/completions", kChat, {"Hi ", "you"}, "Hi you"},
      {"/v1/chat/completions", kChat, {kThought, "Hi"}, std::string(kThought) + "Hi"},
      {"/v1/chat/completions", kChat, {kCall}, kCall},
      {"/v1/chat/completions", With(kChat, {{"chat_template_kwargs", off}}), {"Hi"}, "Hi"},
      {"/v1/chat/completions", With(kChat, {{"reasoning_effort", "none"}}), {"Hi"}, "Hi"},
      {"/v1/messages", With(message, {{"thinking", {{"type", "disabled"}}}}), {"Hi"}, "Hi"},
      {"/v1/messages", message, {kThought, "Hi"}, std::string(kThought) + "Hi"},
      {"/v1/responses", {{"input", "Hello"}, {"reasoning", {{"effort", "none"}}}}, {"Hi"}, "Hi"},
      // A call that some client gave back as it was cut.
      {"/v1/chat/completions",
       With(kChat, {{"messages", OrderedJson::parse(R"([{"role": "user", "content": "Hello"},
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function":
                  {"name": "get_weather", "arguments": "{\"city\": \"B"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "no JSON"}])")}}),
       {"Hi"},
       "Hi"},
  };
  for (const Case& one : cases) {
    Keep(one.path, one.body, one.pieces);
    const std::vector<Trained> chats = Read("chats");
    ASSERT_EQ(chats.size(), 1u) << one.path << one.body;
    // Messages train earlier answers, too.
    const std::string trained = one.trained + "<|im_end|>";
    EXPECT_TRUE(chats[0].second.ends_with(trained)) << one.path << chats[0].second;
    for (const auto& [mark, label] : {std::pair("up", true), std::pair("down", false)}) {
      Keep(one.path, one.body, one.pieces);
      EXPECT_EQ(Mark({{"mark", mark}}), 200);
      const auto marks = Read("marks", true);
      ASSERT_EQ(marks.size(), 1u);
      const auto& [read, answer] = marks[0].first;
      EXPECT_TRUE(read.starts_with(prompt_)) << one.path << read << prompt_;
      EXPECT_EQ(answer, trained);
      EXPECT_EQ(marks[0].second, label);
    }
    EXPECT_EQ(Mark({{"mark", "edited"}, {"edited", "Ho"}}), 200);
    const std::vector<Trained> edits = Read("edits");
    ASSERT_EQ(edits.size(), 1u);
    EXPECT_EQ(edits[0].first, chats[0].first);
    EXPECT_TRUE(edits[0].second.ends_with("Ho<|im_end|>")) << edits[0].second;
  }
}

TEST_F(KeptRecordsTest, AnAnswerThatTheRequestBeganIsKeptWhole) {
  const OrderedJson body = OrderedJson::parse(R"({"model": "talker", "max_tokens": 9, "messages":
    [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "It is P"}]})");
  for (const char* edited : {"erth.", "It is Perth."}) {
    Keep("/v1/messages", body, {"aris."});
    EXPECT_TRUE(prompt_.ends_with("<|im_start|>assistant\nIt is P"));
    EXPECT_EQ(Mark({{"mark", "up"}}), 200);
    EXPECT_EQ(Mark({{"mark", "edited"}, {"edited", edited}}), 200);
    EXPECT_TRUE(Read("chats").at(0).second.starts_with("It is Paris.<|im_end|>"));
    EXPECT_TRUE(Read("marks", true).at(0).first.second.starts_with("It is Paris.<|im_end|>"));
    EXPECT_TRUE(Read("edits").at(0).second.starts_with("It is Perth.<|im_end|>"));
  }
}

// Files with such a line would be refused as a whole.
TEST_F(KeptRecordsTest, WhatNoTrainingReadsIsLeftOut) {
  const std::vector<std::pair<std::string, GenerationEnd>> answers = {
      {kCutCall, {.reason = StopReason::kStopText, .stop = "s"}},
      {kCutCall, {.reason = StopReason::kMaxNewTokens}},
      {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": nowhere}}\n</tool_call>",
       {}},
  };
  for (const auto& [answer, end] : answers) {
    Keep("/v1/chat/completions", kChat, {answer}, end);
    EXPECT_THAT(Read("chats"), IsEmpty()) << answer;
    EXPECT_EQ(Mark({{"mark", "down"}}), 409) << answer;
    EXPECT_EQ(Mark({{"mark", "edited"}, {"edited", "Ho"}}), 200);
    EXPECT_THAT(Read("marks", true), IsEmpty());
    EXPECT_EQ(Read("edits").size(), 1u);
  }
  Keep("/v1/chat/completions", kChat, {});
  EXPECT_THAT(Read("chats"), IsEmpty()) << "an answer that says nothing";
  EXPECT_EQ(Mark({{"mark", "down"}}), 200);
  EXPECT_EQ(Read("marks", true).size(), 1u) << "which is worth knowing";
}

TEST_F(KeptRecordsTest, TextsAreTrainedAsTheyWereContinued) {
  const OrderedJson body = {{"prompt", "One "}};
  for (const char* mark : {"up", "down"}) {
    Keep("/v1/completions", body, {"two"});
    EXPECT_EQ(Mark({{"mark", mark}}), 200);
    EXPECT_EQ(Mark({{"mark", "edited"}, {"edited", "2"}}), 200);
    EXPECT_THAT(Read("texts"), ElementsAre(Trained("One ", "two</s>")));
    const auto marks = Read("texts-marks", true);
    ASSERT_EQ(marks.size(), 1u);
    EXPECT_EQ(marks[0], std::pair(Trained("One ", "two</s>"), mark == std::string("up")));
    EXPECT_THAT(Read("texts-edits"), ElementsAre(Trained("One ", "2</s>")));
  }
  Keep("/v1/completions", body, {});
  EXPECT_THAT(Read("texts"), IsEmpty()) << "an answer that says nothing";
  EXPECT_EQ(Mark({{"mark", "down"}}), 409);
  EXPECT_EQ(Mark({{"mark", "edited"}, {"edited", ""}}), 400);
}

}  // namespace
}  // namespace qlora
