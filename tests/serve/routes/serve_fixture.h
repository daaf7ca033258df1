// A server without connections: routes over a service that answers what a test says.
#ifndef QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_
#define QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/routes/routes.h"
#include "serve/server.h"
#include "serve/tiny_model.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

// What a client receives.
struct FakeReply final : HttpReply {
  void Send(HttpResponse sent) override {
    response = std::move(sent);
    body = response.shared ? *response.shared : response.body;
    ended = true;
  }
  void Begin(HttpResponse head) override { response = std::move(head); }
  void Write(std::string piece) override { body += piece; }
  void End() override { ended = true; }
  void OnGone(std::function<void()> call) override { gone = std::move(call); }

  Json json() const { return Json::parse(body, nullptr, false); }
  // The data of each event of a stream.
  std::vector<std::string> events() const {
    std::vector<std::string> all;
    std::size_t begin = 0;
    while (begin < body.size()) {
      const std::size_t end = body.find("\n\n", begin);
      EXPECT_NE(end, std::string::npos) << "an event has no end: " << body;
      if (end == std::string::npos) break;
      const std::string event = body.substr(begin, end - begin);
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      all.push_back(event.substr(6));
      begin = end + 2;
    }
    return all;
  }

  HttpResponse response;
  std::string body;
  bool ended = false;
  std::function<void()> gone;
};

// Answers each request with the same pieces, and runs passes, when the test says so.
class ScriptedGeneration final : public GenerationService {
 public:
  GenerationId Submit(GenerationRequest request, GenerationListener listener) override {
    if (std::ssize(requests) == refuse_from) throw ApiError(429, "full", "", "queue_full");
    requests.push_back(request);
    const GenerationId id = std::ssize(requests) - 1;
    waiting.push_back([this, id, listener, tokens = std::ssize(request.prompt)] {
      for (const GenerationPiece& piece : pieces) listener.on_piece(piece);
      GenerationEnd made = end;
      made.prompt_tokens = tokens;
      if (!std::ranges::count(cancelled, id)) listener.on_end(made);
    });
    return id;
  }
  std::int64_t most_answers() const override { return most; }
  void Cancel(GenerationId id) override { cancelled.push_back(id); }
  GenerationId SubmitPasses(PartedPasses passes) override {
    const GenerationId id = passes_submitted++;
    parts = passes.parts;
    waiting.push_back([this, id, passes] {
      for (std::int64_t part = 0; part < passes.parts; ++part) {
        if (std::ranges::count(cancelled, id)) return;
        passes.run_part(*decoder, memory);
      }
      passes.on_end(nullptr);
    });
    return id;
  }
  void CheckRoomForPasses() const override {
    if (passes_are_refused) throw ApiError(429, "full", "", "queue_full");
  }
  void RunAlone(const std::function<void()>& work) override { work(); }

  // Writes all answers, as the thread of an engine would.
  void Write() {
    for (const auto& answer : std::exchange(waiting, {})) answer();
  }

  std::optional<Decoder> decoder;  // of passes
  Arena memory;
  std::int64_t passes_submitted = 0;
  std::int64_t parts = 0;  // of the last passes
  bool passes_are_refused = false;
  std::vector<GenerationPiece> pieces = {{.text = "Hello"}, {.text = " you"}};
  GenerationEnd end = {.cached_tokens = 2, .new_tokens = 3};
  std::int64_t refuse_from = -1;
  std::int64_t most = 272;
  std::vector<GenerationRequest> requests;
  std::vector<GenerationId> cancelled;
  std::vector<std::function<void()>> waiting;
};

// A base "tiny", and an adapter "ada" without weights.
class TestModels final : public ServedModels {
 public:
  explicit TestModels(const std::filesystem::path& folder) {
    auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Load(folder));
    ServedModel model;
    model.name = "tiny";
    model.fingerprint = "print";
    model.created = 7;
    model.context_length = 128;
    model.vocabulary = 288;
    model.tokenizer = tokenizer;
    model.prompts = std::make_shared<const ServedPrompts>(ChatFields(), "", folder, *tokenizer);
    model.answers = FindAnswerForm(kTestTemplate);
    model.sampling.do_sample = true;
    model.sampling.temperature = 0.5;
    model.seed = 11;
    models_.push_back(std::make_shared<const ServedModel>(model));
    model.name = "ada";
    model.parent = "tiny";
    models_.push_back(std::make_shared<const ServedModel>(model));
  }
  ServedModelPtr Find(std::string_view name) const override {
    if (name.empty()) return models_.front();
    for (const ServedModelPtr& model : models_) {
      if (model->name == name) return model;
    }
    throw ApiError(404, "no model " + std::string(name), "model", "model_not_found");
  }
  std::vector<ServedModelPtr> All() const override { return models_; }
  void Load(const std::string& name, const std::string& folder) override {
    loaded.emplace_back(name, folder);
  }
  void Unload(const std::string& name) override { unloaded.push_back(name); }

  std::vector<std::pair<std::string, std::string>> loaded;
  std::vector<std::string> unloaded;

 private:
  std::vector<ServedModelPtr> models_;
};

class RoutesTest : public testing::Test {
 protected:
  RoutesTest()
      : models(folder.path()),
        server{.models = models,
               .generation = generation,
               .metrics = metrics,
               .options = options,
               .workers = workers,
               .log = [this](const std::string& line) { log += line + "\n"; }},
        table(server) {
    AddStatusRoutes(table, server);
    AddModelRoutes(table, server);
    AddChatRoutes(table, server);
    AddCompletionRoutes(table, server);
    AddTokenRoutes(table, server);
  }

  // Waits until a worker has run the route, then writes the answers.
  std::shared_ptr<FakeReply> Ask(const std::string& method, const std::string& path,
                                 const std::string& body = {}) {
    auto reply = Begin(method, path, body);
    generation.Write();
    return reply;
  }
  std::shared_ptr<FakeReply> Begin(const std::string& method, const std::string& path,
                                   const std::string& body = {}) {
    auto reply = std::make_shared<FakeReply>();
    table.Handle({.method = method,
                  .path = path,
                  .headers = {{"content-type", "application/json"}},
                  .body = body,
                  .id = "r1"},
                 reply);
    WaitForWorker();
    return reply;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const OrderedJson& body) {
    return Ask("POST", path, body.dump());
  }
  // The one worker runs what it is given in order.
  void WaitForWorker() {
    std::promise<void> done;
    workers.Run([&done] { done.set_value(); });
    done.get_future().wait();
  }

  TestModelFolder folder;
  TestModels models;
  ScriptedGeneration generation;
  Metrics metrics;
  ServeOptions options;
  std::string log;
  Workers workers{1};
  Server server;
  RouteTable table;
};

// The error of a body: {message, type, param, code}.
inline Json ErrorOf(const FakeReply& reply) {
  const Json json = reply.json();
  EXPECT_TRUE(json.is_object() && json.contains("error")) << reply.body;
  return json.is_object() && json.contains("error") ? json["error"] : Json::object();
}

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_
