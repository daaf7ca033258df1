// A server without connections: routes over a service that answers what a test says.
#ifndef QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_
#define QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
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
    Begin(std::move(sent));
    body = response.shared ? *response.shared : response.body;
    End();
  }
  void Begin(HttpResponse head) override {
    EXPECT_EQ(response.status, 0) << "answered twice";
    response = std::move(head);
  }
  void Write(std::string piece) override {
    EXPECT_FALSE(ended);
    body += piece;
  }
  void End() override {
    ended = true;
    if (reads) response.room = {};
  }
  void OnGone(std::function<void()> call) override { gone = std::move(call); }

  OrderedJson json() const { return OrderedJson::parse(body, nullptr, false); }
  // The data of each event of a stream.
  std::vector<std::string> events() const {
    std::vector<std::string> all;
    for (const auto& [name, data] : NamesAndData()) {
      EXPECT_EQ(name, "");
      all.push_back(data);
    }
    return all;
  }
  // Of events with names: {"event": its name, ...} for each.
  std::vector<OrderedJson> named_events() const {
    std::vector<OrderedJson> all;
    for (const auto& [name, data] : NamesAndData()) {
      EXPECT_NE(name, "") << data;
      all.push_back(OrderedJson::parse(data, nullptr, false));
      all.back()["event"] = name;
    }
    return all;
  }

  bool reads = true;  // what is sent, at once
  HttpResponse response = {.status = 0};
  std::string body;
  bool ended = false;
  std::function<void()> gone;

 private:
  std::vector<std::pair<std::string, std::string>> NamesAndData() const {
    std::vector<std::pair<std::string, std::string>> all;
    std::string_view rest = body;
    while (!rest.empty()) {
      const std::size_t end = rest.find("\n\n");
      const std::string_view head = rest.substr(0, rest.find("data: "));
      const bool has_name = head.starts_with("event: ") && head.ends_with('\n');
      if (end == rest.npos || head.size() > end || (!has_name && !head.empty())) {
        ADD_FAILURE() << "no event: " << rest;
        break;
      }
      all.emplace_back(has_name ? head.substr(7, head.size() - 8) : head,
                       rest.substr(head.size() + 6, end - head.size() - 6));
      rest.remove_prefix(end + 2);
    }
    return all;
  }
};

// Keeps requests, and answers them or runs their passes when the test says so.
class ScriptedGeneration final : public GenerationService {
 public:
  GenerationId Submit(GenerationRequest request, GenerationListener listener) override {
    if (refusal && std::ssize(requests) >= refuse_from) throw *refusal;
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
    if (on_submit) on_submit();
    const std::lock_guard lock(mutex);
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
    if (on_check) on_check();
    if (refusal) throw *refusal;
  }
  void RunAlone(const std::function<void()>& work) override { work(); }

  // Answers all with the same pieces, as the thread of an engine would.
  void Write() {
    for (const auto& answer : std::exchange(waiting, {})) answer();
  }
  // Answers the last request alone, with these texts.
  void Answer(const std::vector<std::string>& texts, GenerationEnd its_end = {}) {
    ASSERT_FALSE(waiting.empty()) << "no request was submitted";
    pieces.clear();
    for (const std::string& text : texts) pieces.push_back({.text = text});
    end = std::move(its_end);
    if (end.new_tokens == 0) end.new_tokens = 20;
    waiting.erase(waiting.begin(), waiting.end() - 1);
    Write();
  }

  std::optional<Decoder> decoder;  // of passes
  Arena memory;
  std::function<void()> on_check;   // of passes, before a request is read
  std::function<void()> on_submit;  // of passes
  std::mutex mutex;                 // of these
  std::int64_t passes_submitted = 0;
  std::int64_t parts = 0;  // of the last passes
  std::vector<GenerationPiece> pieces = {{.text = "Hello"}, {.text = " you"}};
  GenerationEnd end = {.cached_tokens = 2, .new_tokens = 3};
  std::optional<ApiError> refusal;
  std::int64_t refuse_from = 0;  // requests before this one are taken
  std::int64_t most = 272;
  std::vector<GenerationRequest> requests;
  std::vector<GenerationId> cancelled;
  std::vector<std::function<void()>> waiting;
};

// A base, and an adapter "ada" without weights.
class TestModels final : public ServedModels {
 public:
  explicit TestModels(ServedModel model) {
    models_.push_back(std::make_shared<const ServedModel>(model));
    model.parent = std::exchange(model.name, "ada");
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

// All routes over models of some kind.
template <typename Models>
class ServeTest : public testing::Test {
 protected:
  template <typename... Args>
  explicit ServeTest(Args&&... args) : models_(std::forward<Args>(args)...) {
    AddRoutes(routes_, server_);
  }
  // Replies that wait count what was answered: they end before the server.
  void TearDown() override { service_.waiting.clear(); }

  // Waits until the worker has run the route; what was submitted is not answered yet.
  std::shared_ptr<FakeReply> Begin(
      HttpRequest request, std::shared_ptr<FakeReply> reply = std::make_shared<FakeReply>()) {
    request.headers.try_emplace("content-type", "application/json");
    request.id = "id0";
    routes_.Handle(std::move(request), reply);
    WaitForWorker();
    return reply;
  }
  std::shared_ptr<FakeReply> Begin(const std::string& method, const std::string& path,
                                   const std::string& body = {}) {
    return Begin({.method = method, .path = path, .body = body});
  }
  std::shared_ptr<FakeReply> Ask(const std::string& method, const std::string& path,
                                 const std::string& body = {}) {
    auto reply = Begin(method, path, body);
    service_.Write();
    return reply;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const OrderedJson& body) {
    return Ask("POST", path, body.dump());
  }
  // The one worker runs what it is given in order.
  void WaitForWorker() {
    std::promise<void> done;
    workers_.Run([&done] { done.set_value(); });
    done.get_future().wait();
  }

  Models models_;
  ScriptedGeneration service_;
  Metrics metrics_;
  ServeOptions options_;
  std::string log_;
  Workers workers_{1};
  Server server_{.models = models_,
                 .generation = service_,
                 .metrics = metrics_,
                 .options = options_,
                 .workers = workers_,
                 .log = [this](const std::string& line) { log_ += line + "\n"; }};
  RouteTable routes_{server_};
};

// Over a model "tiny".
class RoutesTest : public ServeTest<TestModels> {
 protected:
  RoutesTest() : ServeTest(MakeModel()) {}

 private:
  static ServedModel MakeModel() {
    const TestModelFolder folder;
    ServedModel model{.name = "tiny", .fingerprint = "print", .created = 7, .context_length = 128};
    model.vocabulary = 288;
    model.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Load(folder.path()));
    model.prompts =
        std::make_shared<const ServedPrompts>(ChatFields(), "", folder.path(), *model.tokenizer);
    model.answers = FindAnswerForm(kTestTemplate);
    model.sampling.do_sample = true;
    model.sampling.temperature = 0.5;
    model.seed = 11;
    return model;
  }
};

// The error of a body: {message, type, param, code}.
inline Json ErrorOf(const FakeReply& reply) {
  const Json json = reply.json();
  EXPECT_TRUE(json.is_object() && json.contains("error")) << reply.body;
  return json.is_object() && json.contains("error") ? json["error"] : Json::object();
}

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ROUTES_SERVE_FIXTURE_H_
