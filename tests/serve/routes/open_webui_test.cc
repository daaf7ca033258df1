// What Open WebUI asks a server that it was given as a connection of OpenAI's form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class OpenWebUiTest : public RoutesTest {
 protected:
  std::string Prompt() const {
    if (service_.requests.empty()) return "no request";
    return models_.Find("")->tokenizer->Decode(service_.requests.back().prompt, false);
  }
};

TEST_F(OpenWebUiTest, ModelsAreListed) {
  const Json list = Ask("GET", "/v1/models")->json();
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  for (const Json& model : list["data"]) EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][1]["id"], "ada");
}

// With what its own functions leave in the body, and a user as pipelines get them.
TEST_F(OpenWebUiTest, AChatWithAllItsFields) {
  const auto reply = Ask("POST", "/v1/chat/completions", R"({
      "model": "ada", "stream": true, "stream_options": {"include_usage": true},
      "messages": [{"role": "system", "content": "Be kind."},
                   {"role": "user", "content": "Hi", "id": "5", "timestamp": 1764600000, "models": ["ada"]},
                   {"role": "assistant", "content": "Hello", "done": true, "sources": []},
                   {"role": "user", "content": [{"type": "text", "text": "And now?"}]}],
      "params": {}, "files": [{"type": "file", "id": "6", "name": "a.txt"}],
      "features": {"image_generation": false, "code_interpreter": false, "web_search": false, "memory": false},
      "variables": {"{{USER_NAME}}": "Ada", "{{CURRENT_DATE}}": "2026-12-01"},
      "metadata": {"user_id": "1", "chat_id": "2", "features": {}, "variables": {}, "direct": false},
      "model_item": {"id": "ada", "object": "model", "owned_by": "openai", "tags": []},
      "session_id": "3", "chat_id": "2", "id": "4", "parent_id": "5",
      "background_tasks": {"title_generation": true, "tags_generation": true, "follow_up_generation": true},
      "tool_ids": ["calculator"], "skill_ids": [], "filter_ids": [], "tool_servers": [{"url": "http://x"}],
      "user": {"name": "Ada", "id": "1", "email": "ada@example.org", "role": "admin"},
      "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0, "max_tokens": 50, "seed": 3,
      "stop": ["END"], "reasoning_effort": "medium", "logit_bias": {"5": 1}})");
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  EXPECT_EQ(Prompt(), "<s>[system]Be kind.[user]Hi[assistant]Hello[user]And now?[assistant]");
  const GenerationRequest& request = service_.requests.at(0);
  EXPECT_EQ(request.model->name, "ada");
  EXPECT_EQ(request.options.temperature, 0.8);
  EXPECT_EQ(request.options.max_new_tokens, 50);
  const std::vector<std::string> events = reply->events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"]["completion_tokens"], 3);
}

// Titles, tags and questions to go on with are asked for like this; the answer is read as JSON.
TEST_F(OpenWebUiTest, ATitleIsGenerated) {
  service_.pieces = {{.text = "{\"title\": \"A greeting\"}"}};
  const auto reply = Ask("POST", "/v1/chat/completions", R"({
      "model": "tiny", "stream": false, "max_completion_tokens": 1000,
      "messages": [{"role": "user", "content": "### Task:\nGenerate a title.\n<chat_history>\nHi\n</chat_history>"}],
      "metadata": {"task": "title_generation", "task_body": {"model": "tiny"}, "chat_id": "2"}})");
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  EXPECT_EQ(service_.requests.at(0).options.max_new_tokens, 1000);
  const Json message = reply->json()["choices"][0]["message"];
  EXPECT_EQ(Json::parse(message["content"].get<std::string>())["title"], "A greeting");
}

TEST_F(OpenWebUiTest, AResponseInPlaceOfAChat) {
  const auto reply = Ask("POST", "/v1/responses", R"({
      "model": "tiny", "stream": false, "instructions": "Be kind.", "max_output_tokens": 50, "temperature": 0.8,
      "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]})");
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  EXPECT_EQ(Prompt(), "<s>[system]Be kind.[user]Hi[assistant]Hello[user]And now?[assistant]");
  EXPECT_EQ(reply->json()["output"][0]["content"][0]["text"], "Hello you");
}

TEST_F(OpenWebUiTest, APictureIsRefusedByName) {
  const auto reply = Ask("POST", "/v1/chat/completions", R"({"model": "tiny", "messages": [
      {"role": "user", "content": [{"type": "text", "text": "What is this?"},
                                   {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]})");
  EXPECT_EQ(reply->response.status, 400);
  EXPECT_THAT(ErrorOf(*reply)["param"].get<std::string>(), HasSubstr("messages[0].content[1]"));
}

}  // namespace
}  // namespace qlora
