// A whole server over a tiny model, as a client sees it.
#include "serve/running_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dist/free_port.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/http/http_client.h"
#include "serve/serve_plan.h"
#include "serve/tiny_model.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunningServerTest : public testing::Test {
 protected:
  RunningServerTest() {
    options_.model.model_name_or_path = folder_.path().string();
    options_.model.compute_dtype = "float32";
    options_.model.adapter = {"ada=" + (SourceDir() / "tests/golden/llama-tiny/adapter").string()};
    options_.served_model_name = "tiny";
    options_.port = 0;
    options_.max_sequences = 2;
    options_.kv_memory = "10MB";
  }
  void Start() {
    const auto log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    server_.emplace(context_, options_, "1", log, ProgressFn());
  }
  std::string Log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  HttpAnswer Post(TestClient& client, const std::string& path, const std::string& body) {
    client.Ask("POST", path, "Content-Type: application/json\r\n", body);
    return client.Read();
  }

  TestModelFolder folder_;
  Context context_{1};
  ServeOptions options_;
  std::mutex mutex_;
  std::string log_;
  std::optional<RunningServer> server_;
};

TEST_F(RunningServerTest, AnswersOverAConnection) {
  Start();
  TestClient client(server_->port());
  const Json models = Json::parse(client.Get("/v1/models").body);
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][1]["parent"], "tiny");
  EXPECT_EQ(models["data"][0]["context_length"], 128);
  const std::string chat = R"({"model": "ada", "messages": [{"role": "user", "content": "secret"}],
                               "max_tokens": 4, "temperature": 0)";
  const HttpAnswer whole = Post(client, "/v1/chat/completions", chat + "}");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const HttpAnswer stream = Post(client, "/v1/chat/completions", chat + R"(, "stream": true})");
  EXPECT_THAT(stream.Header("Content-Type"), HasSubstr("text/event-stream"));
  std::string text;
  std::size_t at = 0;
  while ((at = stream.body.find("data: {", at)) != std::string::npos) {
    const Json chunk =
        Json::parse(stream.body.substr(at + 6, stream.body.find("\n\n", at) - at - 6));
    text += chunk["choices"][0]["delta"].value("content", "");
    ++at;
  }
  EXPECT_EQ(text, Json::parse(whole.body)["choices"][0]["message"]["content"]);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  // Counted once an answer is at its end, which its client may see first.
  while (client.Get("/metrics").body.find("qlora_generation_tokens_total{model=\"ada\"} 8\n") ==
         std::string::npos) {
  }
  EXPECT_EQ(Post(client, "/v1/files", "{}").status, 404) << "without --runs";
  EXPECT_THAT(Log(), HasSubstr("POST /v1/chat/completions 200"));
  EXPECT_THAT(Log(), Not(HasSubstr("secret")));
}

TEST_F(RunningServerTest, DrainsAndEnds) {
  Start();
  TestClient client(server_->port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_TRUE(server_->Drain(std::chrono::minutes(1)));
  EXPECT_TRUE(client.IsEnded());
  EXPECT_FALSE(TestClient(server_->port()).is_connected());
  server_.reset();
}

// What is not answered in time has an end, too; the last of these requests only wait.
TEST_F(RunningServerTest, ClientsAreToldOfTheEnd) {
  Start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    clients.back()->Ask(
        "POST", "/v1/completions", "Content-Type: application/json\r\n",
        R"({"prompt": "a", "max_tokens": 120, "ignore_eos": true, "stream": true})");
    EXPECT_EQ(clients.back()->ReadHead().status, 200);
  }
  server_->Drain(std::chrono::milliseconds(0));
  for (const auto& client : clients) {
    std::string body;
    for (std::string chunk = client->ReadChunk(); !chunk.empty(); chunk = client->ReadChunk()) {
      body += chunk;
    }
    EXPECT_TRUE(body.ends_with("data: [DONE]\n\n") || body.find("\"stopping\"") != body.npos)
        << body;
  }
  server_.reset();
}

// At any moment: within a request, before its answer, in its midst. Their answers hold slots, and
// some a form or log-probabilities, until they end.
TEST_F(RunningServerTest, NothingStaysOfAThousandClientsThatLeave) {
  Start();
  const ServedModelPtr base = server_->models().Find("");
  TestClient other(server_->port());
  const std::string ask = R"({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})";
  const Json before = Json::parse(Post(other, "/v1/completions", ask).body);
  const char* const kFields[] = {R"("stream": true, "ignore_eos": true)",
                                 R"("logprobs": 5, "n": 2)",
                                 R"("model": "ada", "response_format": {"type": "json_object"})",
                                 R"("echo": true, "model": "ada")"};
  std::mt19937 random(1);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    ASSERT_TRUE(clients.back()->is_connected());
    const std::string body =
        std::string(R"({"prompt": "Once upon", "max_tokens": 100, )") + kFields[i % 4] + "}";
    if (random() % 8 == 0) {
      // A body that never comes whole. All of these are more bytes than a server has room for.
      clients.back()->Send(
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
          "Content-Type: application/json\r\nContent-Length: 400000\r\n\r\n" +
          body + std::string(300'000, ' '));
    } else {
      clients.back()->Ask("POST", "/v1/completions", "Content-Type: application/json\r\n", body);
    }
    if (clients.size() < 24) continue;
    auto& leaves = clients[random() % clients.size()];
    std::swap(leaves, clients.back());
    clients.pop_back();
  }
  clients.clear();
  const auto rests = [&] {
    const std::string metrics = TestClient(server_->port()).Get("/metrics").body;
    for (const char* line : {"\nqlora_requests_running 0\n", "\nqlora_requests_waiting 0\n",
                             "\nqlora_kv_pages_used 0\n"}) {
      if (metrics.find(line) == std::string::npos) return false;
    }
    return base->room->held == 0;
  };
  while (!rests()) {
  }
  TestClient last(server_->port());
  const HttpAnswer after = Post(last, "/v1/completions", ask);
  ASSERT_EQ(after.status, 200) << after.body;
  EXPECT_EQ(Json::parse(after.body)["choices"], before["choices"]);
  EXPECT_THAT(Log(), Not(HasSubstr("error: ")));
}

TEST_F(RunningServerTest, MemoryDecidesOnRoom) {
  Start();
  EXPECT_EQ(server_->plan().limits.sequences, 2);
  EXPECT_EQ(server_->plan().limits.positions, 128);
  server_.reset();
  options_.kv_memory = "1KB";
  try {
    Start();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  options_.kv_memory = "";
  options_.context_length = 129;
  EXPECT_THROW(Start(), Error);
}

// Also of what the server has not touched yet.
TEST_F(RunningServerTest, AJobGetsWhatThePlanLeaves) {
  constexpr std::size_t kTebi = std::size_t{1} << 40;
  const ServePlan plan = {.parts = {{"weights", kTebi}, {"requests", 3 * kTebi}}};
  options_.max_memory = "5TiB";
  EXPECT_EQ(MemoryLeft(options_, plan), kTebi);
  ServePlan other = plan;
  other.other_bytes = 1000;
  EXPECT_EQ(MemoryLeft(options_, other), kTebi - 1000);
  options_.max_memory = "1TiB";
  EXPECT_LE(MemoryLeft(options_, plan), 0);
  options_.max_memory = "";
  EXPECT_LT(MemoryLeft(options_, plan), MemoryLeft(options_, {}));
}

// Pages that are read in place count as available until they are read, and then are needed.
TEST(ServePlan, WeightsInPlaceAreNoRoom) {
  EXPECT_EQ(RoomBeside({.owned = 5, .mapped = 3}, 10), 7u);
  EXPECT_EQ(RoomBeside({.mapped = 30}, 10), 0u);
}

TEST_F(RunningServerTest, TooLittleMemoryNamesWhatFits) {
  const auto error = [&] {
    try {
      Start();
      return std::string("nothing was thrown");
    } catch (const Error& thrown) {
      EXPECT_EQ(thrown.code(), ErrorCode::kOutOfMemory);
      return std::string(thrown.what());
    }
  };
  Start();
  const std::vector<MemoryPart> parts = server_->plan().parts;
  const auto keys = std::ranges::find(parts, "keys and values", &MemoryPart::name);
  const std::size_t slot = keys->bytes / 2;
  server_.reset();
  options_.kv_memory = std::to_string(slot * 7 / 10) + "B";
  EXPECT_THAT(error(), HasSubstr("--context_length 64 fits"));
  options_.context_length = 64;
  Start();
  EXPECT_EQ(server_->plan().limits.positions, 64);
  server_.reset();
  options_.kv_memory = "";
  options_.max_memory = "1MB";
  EXPECT_THAT(error(), HasSubstr("--max_memory"));
  options_.max_memory = "";
  options_.kv_memory = "1KB";
  EXPECT_THAT(error(), HasSubstr("--kv_memory"));
}

// Before it takes minutes to load a model.
TEST_F(RunningServerTest, RefusesWhatNeedsNoModelFirst) {
  const auto error = [&](const ServeOptions& changed) {
    options_ = changed;
    options_.model.model_name_or_path = "no/such/model";
    try {
      Start();
    } catch (const Error& thrown) {
      return std::string(thrown.what());
    }
    return std::string("nothing was thrown");
  };
  const ServeOptions options = options_;
  const TemporaryFolder runs;
  ServeOptions with_runs = options;
  with_runs.runs = runs.path().string();
  const RunningServer other(
      context_, with_runs, "1", [](const std::string&) {}, ProgressFn());
  EXPECT_THAT(error(with_runs), HasSubstr(with_runs.runs + " is used by another server"));
  ServeOptions changed = options;
  changed.port = other.port();
  EXPECT_THAT(error(changed), HasSubstr("is taken"));
  changed = options;
  changed.api_key_file = "no/such/key";
  EXPECT_THAT(error(changed), HasSubstr("no/such/key"));
  const TemporaryFolder keys;
  changed.api_key_file = keys.Write("key", "a\nb\n").string();
  EXPECT_THAT(error(changed), HasSubstr("api_key_file: expected one key"));
  changed = options;
  changed.api_key = " pad ";
  EXPECT_THAT(error(changed), HasSubstr("api_key: expected one key"));
  changed = options;
  changed.host = "nowhere";
  EXPECT_THAT(error(changed), HasSubstr("host: expected an address"));
  changed.host = "0.0.0.0";
  EXPECT_THAT(error(changed), HasSubstr("can be reached by other machines"));
  changed = options;
  changed.adapter_dir = "no/such/adapters";
  EXPECT_THAT(error(changed), HasSubstr("no/such/adapters"));
  EXPECT_THAT(error(options), HasSubstr("no/such/model"));
}

TEST_F(RunningServerTest, SaysThatItLoads) {
  const FreePort port;
  options_.port = port;
  int status = 0;
  std::string body;
  const ProgressFn progress = [&](std::int64_t, std::int64_t) {
    if (status != 0) return;
    TestClient client(port);
    const HttpAnswer answer = client.Get("/health");
    status = answer.status;
    body = answer.body;
  };
  server_.emplace(
      context_, options_, "1", [](const std::string&) {}, progress);
  EXPECT_EQ(status, 503);
  EXPECT_EQ(Json::parse(body)["error"]["code"], "loading");
  EXPECT_EQ(TestClient(port).Get("/health").status, 200);
}

}  // namespace
}  // namespace qlora
