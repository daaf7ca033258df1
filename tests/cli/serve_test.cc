// `qlora serve` as people start and end it. What it answers is tested in tests/serve.
#include <gmock/gmock.h>

#include "cli/tiny_model.h"
#include "serve/http/http_client.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ServeTest : public TinyModelTest {
 protected:
  static Words Serve(const Words& more = {}) {
    Words words = {"serve", "model", "--port", "0", "--threads", "1", "--max_memory", "1GB"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Starts a server with these options, calls `ask` with its port once it listens, and sends it
  // SIGTERM.
  Outcome Run(const Words& more, const std::function<void(std::int64_t port)>& ask) const {
    return RunQlora(scratch_, Serve(more), "", [&](pid_t program) {
      std::string said;
      const bool listens = WaitUntil(program, [&] {
        said = ReadAll(scratch_ / ".stderr");
        return said.find("to try it: ") != std::string::npos && said.ends_with('\n');
      });
      const std::string before = "listening: http://127.0.0.1:";
      const std::size_t at = said.find(before);
      EXPECT_NE(at, std::string::npos) << said;
      if (listens && at != std::string::npos) ask(std::stol(said.substr(at + before.size())));
      kill(program, SIGTERM);
    });
  }
};

TEST_F(ServeTest, StartsAnswersAndEnds) {
  Write("key", "a-key\n");
  HttpAnswer models;
  HttpAnswer answer;
  int without_key = 0;
  std::string url;
  const Outcome outcome =
      Run({"--adapter", "ada=" + (Golden("llama-tiny") / "adapter").string(), "--served_model_name",
           "small", "--compute_dtype", "float32", "--max_sequences", "2", "--context_length", "64",
           "--api_key_file", "key"},
          [&](std::int64_t port) {
            url = "http://127.0.0.1:" + std::to_string(port);
            TestClient client(port);
            without_key = client.Get("/v1/models").status;
            const std::string key = "Authorization: Bearer a-key\r\n";
            models = client.Get("/v1/models", key);
            client.Ask("POST", "/v1/completions", key + "Content-Type: application/json\r\n",
                       R"({"model": "ada", "prompt": "Once upon", "max_tokens": 4})");
            answer = client.Read();
          });
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("memory: weights "),
                    HasSubstr("room: 2 answers at a time, of 64 tokens each\n"),
                    HasSubstr("model: small (base model)\n"), HasSubstr("model: ada (adapter "),
                    HasSubstr("listening: " + url + " (a page "),
                    HasSubstr("to try it: curl " + url + "/v1/completions "),
                    HasSubstr("-H 'Authorization: Bearer KEY'"), HasSubstr("\"model\": \"ada\"")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("stopping: new requests are refused"),
                                 testing::EndsWith("stopped: all requests are answered\n")));
  EXPECT_EQ(without_key, 401);
  ASSERT_EQ(models.status, 200);
  EXPECT_EQ(nlohmann::json::parse(models.body)["data"][0]["id"], "small");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(nlohmann::json::parse(answer.body)["usage"]["completion_tokens"], 4);
}

TEST_F(ServeTest, RefusesOptionsBeforeItListens) {
  EXPECT_THAT(Refused({"serve", "model", "--port", "70000"}), HasSubstr("port: expected 0 to"));
  EXPECT_THAT(Refused({"serve", "model", "--max_memory", "1GB", "--kv_memory", "1GB"}),
              HasSubstr("max_memory and kv_memory"));
  EXPECT_THAT(Refused({"serve", "model", "--host", "0.0.0.0", "--port", "0"}),
              HasSubstr("give an API key"));
  // Of a variable that is not set.
  for (const std::string option : {"--api_key", "--api_key_file"}) {
    EXPECT_THAT(Refused({"serve", "model", option, ""}), HasSubstr("expects text, found ''"));
  }
  EXPECT_THAT(Refused({"serve"}), HasSubstr("--model is missing"));
}

TEST_F(ServeTest, TooLittleMemoryHasAnExitCodeOfItsOwn) {
  const Outcome outcome =
      TinyModelTest::Run({"serve", "model", "--port", "0", "--kv_memory", "1KB"});
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--kv_memory"));
}

}  // namespace
}  // namespace qlora
