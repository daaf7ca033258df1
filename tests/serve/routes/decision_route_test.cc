// Decisions over a tiny model that was trained to decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "inference/asked_questions.h"
#include "io/json.h"
#include "pass/eval_memory.h"
#include "pass/state_pool.h"
#include "qlora/context.h"
#include "qlora/model.h"
#include "serve/loaded_models.h"
#include "serve/routes/serve_fixture.h"
#include "serve/serve_plan.h"

namespace qlora {
namespace {

using testing::HasSubstr;

const char* const kAsk = R"({"model": "tiny", "state": "Once there was a dog.", "questions": {
    "glad": {"type": "noul", "instructions": "Is it happy?"},
    "who": {"type": "choice", "instructions": "Who?", "criteria": {"cat": "meows", "dog": null}},
    "hats": {"type": "score", "instructions": "Hats?", "criteria": ["none", "one", "two"]}}})";
const char* const kDecide = R"({"model": "tiny", "input": "Once there was a dog.", "questions": [
    {"type": "predicate", "name": "glad", "instructions": "Is it happy?"},
    {"type": "choice", "name": "who", "instructions": "Who?",
     "choices": [{"value": "cat", "description": "meows"}, {"value": "dog"}]},
    {"type": "score", "name": "hats", "instructions": "Hats?",
     "levels": [{"label": "none"}, {"label": "one"}, {"label": "two"}]}]})";

struct WithContext {
  Context context_{1};
};

class DecisionRouteTest : public WithContext, public ServeTest<LoadedModels> {
 protected:
  DecisionRouteTest() : ServeTest(context_, Options(), "1", ProgressFn()) {
    const LoadedModel& base = models_.base();
    service_.decoder.emplace(*base.backend, base.config, base.weights, base.precision,
                             base.config.max_position_embeddings);
    server_.base = &models_.base();
    options_ = Options();
  }

  static ServeOptions Options() {
    ServeOptions options;
    options.model.model_name_or_path = (SourceDir() / "tests/golden/decision/tiny-qwen3").string();
    options.model.compute_dtype = "float32";
    options.served_model_name = "tiny";
    return options;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const std::string& body) {
    return Ask("POST", path, body);
  }
};

TEST_F(DecisionRouteTest, AnswersAsTheModelAlone) {
  Model model = Model::Load(context_, options_.model);
  EXPECT_EQ(Post("/v1/systemone", kAsk)->body, model.Decide(kAsk));
  EXPECT_EQ(Post("/v1/decisions", kDecide)->body, model.Decide(kDecide));
  EXPECT_EQ(Post("/v1/systemone", kAsk)->body, model.Decide(kAsk));
}

// What eval measures is what clients get.
TEST_F(DecisionRouteTest, AnswersHaveTheProbabilitiesOfEval) {
  const TemporaryFolder folder;
  OrderedJson record = OrderedJson::parse(kAsk);
  record.erase("model");
  record["answers"] = {{"glad", true}, {"who", "dog"}, {"hats", 1}};
  EvalOptions eval;
  eval.keeps_predictions = true;
  eval.dataset = {folder.Write("eval.jsonl", record.dump() + "\n").string()};
  const EvalResult result = Model::Load(context_, options_.model).Evaluate(eval);
  std::vector<Json> predictions;
  std::istringstream lines(result.decision->predictions);
  for (std::string line; std::getline(lines, line);) predictions.push_back(Json::parse(line));
  ASSERT_EQ(predictions.size(), 3u);
  const Json answers = Post("/v1/decisions", kDecide)->json()["answers"];
  const auto probabilities = [&](int i) -> const Json& { return predictions[i]["probabilities"]; };
  EXPECT_NEAR(answers[0]["probability"], probabilities(0)[1], 1e-5);
  for (const int i : {1, 2}) {
    ASSERT_EQ(answers[i]["probabilities"].size(), probabilities(i).size());
    for (std::size_t k = 0; k < probabilities(i).size(); ++k) {
      EXPECT_NEAR(answers[i]["probabilities"][k]["probability"], probabilities(i)[k], 1e-5);
    }
  }
}

TEST_F(DecisionRouteTest, BothFormsHaveTheSameProbabilities) {
  const Json one = Post("/v1/systemone", kAsk)->json();
  const Json other = Post("/v1/decisions", kDecide)->json();
  ASSERT_TRUE(one.contains("answers") && other.contains("answers")) << one << other;
  EXPECT_EQ(other["answers"][0]["probability"], one["answers"]["glad"]["noul"]);
  EXPECT_EQ(other["answers"][1]["probabilities"][0]["probability"],
            one["answers"]["who"]["probabilities"]["cat"]);
  EXPECT_EQ(other["answers"][2]["score"], one["answers"]["hats"]["score"]);
}

TEST_F(DecisionRouteTest, ManyQuestionsArePartsOfTheSameAnswer) {
  OrderedJson body = OrderedJson::parse(kAsk);
  const OrderedJson who = body["questions"]["who"];
  body["questions"] = OrderedJson::object();
  for (int i = 0; i < 60; ++i) body["questions"]["q" + std::to_string(i)] = who;
  const Json answers = Post("/v1/systemone", body.dump())->json()["answers"];
  const Json alone = Post("/v1/systemone", kAsk)->json()["answers"]["who"];
  ASSERT_EQ(answers.size(), 60);
  for (const Json& answer : answers) {
    EXPECT_NEAR(answer["probabilities"]["cat"], alone["probabilities"]["cat"], 1e-5);
  }
}

TEST_F(DecisionRouteTest, AQuestionThatIsAskedTwiceIsRefused) {
  const std::string twice = R"({"state": "x", "questions": {
      "a": {"type": "noul", "instructions": "x"}, "a": {"type": "noul", "instructions": "y"}}})";
  const auto reply = Post("/v1/systemone", twice);
  EXPECT_EQ(reply->response.status, 400);
  EXPECT_THAT(reply->body, HasSubstr("key 'a' appears twice"));
}

TEST_F(DecisionRouteTest, WhatIsWrongIsNamed) {
  struct Wrong {
    const char* path;
    std::string body;
    const char* message;
  };
  for (const auto& [path, body, message] : std::vector<Wrong>{
           {"/v1/systemone", R"({"state": "x"})", "questions: expected an object of questions"},
           {"/v1/systemone", kDecide, "questions: expected an object of questions"},
           {"/v1/systemone", R"({"state": "x", "questions": {"odd": {"type": "noul"}}})",
            "questions.odd.instructions"},
           {"/v1/decisions", kAsk, "questions: expected a list of questions"},
           {"/v1/decisions", R"({"input": "x", "questions": [{"type": "predicate"}]})",
            "questions[0].instructions"},
           {"/v1/decisions", R"({"stream": true, "input": "x", "questions": [{"type": "predicate",
             "instructions": "x"}]})",
            "stream: "},
           {"/v1/systemone", R"({"stream": true, "state": "x", "questions": {"a": {"type": "noul",
             "instructions": "x"}}})",
            "stream: "},
           {"/v1/decisions", R"({"input": "x", "questions": [{"type": "predicate",
             "instructions": "x", "choices": [{"value": "a"}]}]})",
            "questions[0].choices: "}}) {
    const auto reply = Post(path, body);
    EXPECT_EQ(reply->response.status, 400) << body;
    const Json error = ErrorOf(*reply);
    const std::string text = error["message"];
    EXPECT_THAT(text, HasSubstr(message));
    EXPECT_EQ(error["param"], text.substr(0, text.find(": ")));
  }
  EXPECT_EQ(Post("/v1/systemone", R"({"model": "other", "state": "x", "questions": {"a":
      {"type": "noul", "instructions": "x"}}})")
                ->response.status,
            404);
}

TEST_F(DecisionRouteTest, FieldsThatWouldChangeTheAnswerAreRefused) {
  const auto with = [&](const std::string& path, const std::string& field) {
    const std::string body = path == "/v1/systemone" ? kAsk : kDecide;
    return Post(path, "{" + field + ", " + body.substr(1));
  };
  for (const std::string path : {"/v1/systemone", "/v1/decisions"}) {
    for (const std::string name :
         {"lora", "adapter_id", "documents", "messages", "instructions", "decision_template"}) {
      const auto reply = with(path, "\"" + name + R"(": ["x"])");
      EXPECT_EQ(reply->response.status, 400) << path << " " << name;
      EXPECT_EQ(ErrorOf(*reply)["param"], name) << path;
    }
    const std::string other = path == "/v1/systemone" ? R"("input": "x")" : R"("state": "x")";
    const std::string own = path == "/v1/systemone" ? "state" : "input";
    EXPECT_THAT(with(path, other)->response.body, HasSubstr("this interface has " + own)) << path;
    EXPECT_EQ(with(path, R"("temperature": 0.5)")->response.status, 400) << path;
    EXPECT_EQ(with(path, R"("options": {"temperature": 0.5})")->response.status, 400) << path;
    EXPECT_EQ(with(path, R"("temperature": 1, "lora": [], "documents": null, "max_tokens": 5)")
                  ->response.status,
              200)
        << path;
  }
}

// The memory for passes is planned: it is enough, and is not replaced. A state is read once for
// several questions, also where it leaves little room for them.
TEST_F(DecisionRouteTest, PassesStayInPlannedMemory) {
  const ServePlan plan =
      PlanServing(models_.base(), models_.All(), models_.planned_adapters(), options_, 0);
  ReservePass(*service_.decoder, {}, plan.limits.alone_rows, plan.limits.alone_unfolded,
              service_.memory);
  const std::byte* planned = service_.memory.data();
  const std::string sentence = "Once there was a dog. ";
  const std::int64_t tokens = std::ssize(models_.Find("")->tokenizer->Encode(sentence, false));
  const std::int64_t room = plan.decision_length - 200;  // beside a question
  OrderedJson body = OrderedJson::parse(kAsk);
  const OrderedJson who = body["questions"]["who"];
  for (int i = 0; i < 97; ++i) body["questions"]["q" + std::to_string(i)] = who;
  for (const std::int64_t sentences : {room / tokens / 8, room / tokens}) {
    std::string state;
    for (std::int64_t i = 0; i < sentences; ++i) state += sentence;
    body["state"] = state;
    EXPECT_EQ(Post("/v1/systemone", body.dump())->response.status, 200);
    EXPECT_EQ(service_.memory.data(), planned);
    EXPECT_GT(service_.parts, 1);
    EXPECT_LT(service_.parts, 20) << "for 100 questions";
  }
}

TEST_F(DecisionRouteTest, ADecisionEndsWhenItsClientLeaves) {
  const auto reply = Begin("POST", "/v1/systemone", kAsk);
  ASSERT_EQ(service_.passes_submitted, 1);
  reply->gone();
  EXPECT_THAT(service_.cancelled, testing::ElementsAre(0));
  service_.Write();
  EXPECT_FALSE(reply->ended);
}

TEST_F(DecisionRouteTest, WhatNobodyWaitsForIsNotLaidOut) {
  std::promise<void> go;
  workers_.Run([may_go = go.get_future().share()] { may_go.wait(); });
  auto reply = std::make_shared<FakeReply>();
  routes_.Handle({.method = "POST",
                  .path = "/v1/systemone",
                  .headers = {{"content-type", "application/json"}},
                  .body = kAsk},
                 reply);
  reply->gone();
  go.set_value();
  WaitForWorker();
  EXPECT_EQ(service_.passes_submitted, 0);
  EXPECT_FALSE(reply->ended);
}

// Laying out asks again.
TEST_F(DecisionRouteTest, LayingOutEndsWhenItsClientLeaves) {
  const auto reply = std::make_shared<FakeReply>();
  service_.on_check = [&] { reply->gone(); };
  Begin({.method = "POST", .path = "/v1/decisions", .body = kDecide}, reply);
  EXPECT_EQ(service_.passes_submitted, 0);
  EXPECT_FALSE(reply->ended);
  EXPECT_EQ(models_.Find("")->room->held, 0u);
}

// Workers are few. Small requests go on.
TEST_F(DecisionRouteTest, OneLargeRequestIsLaidOutAtATime) {
  Workers workers(2);
  Server server{.models = models_,
                .generation = service_,
                .metrics = metrics_,
                .options = options_,
                .workers = workers,
                .log = [](const std::string&) {},
                .base = &models_.base()};
  RouteTable table(server);
  AddDecisionRoutes(table, server);
  struct Reply final : HttpReply {
    void Send(HttpResponse response) override { status.set_value(response.status); }
    void Begin(HttpResponse) override {}
    void Write(std::string) override {}
    void End() override {}
    void OnGone(std::function<void()>) override {}
    std::promise<int> status;
  };
  const auto ask = [&](const std::string& body) {
    const auto reply = std::make_shared<Reply>();
    table.Handle({.method = "POST", .path = "/v1/systemone", .body = body}, reply);
    return reply;
  };
  OrderedJson large = OrderedJson::parse(kAsk);
  const OrderedJson who = large["questions"]["who"];
  for (int i = 0; i < 390; ++i) large["questions"]["q" + std::to_string(i)] = who;
  // Beyond half a MiB for all questions, and within the context.
  std::string state;
  for (int i = 0; i < 65; ++i) state += "Once there was a dog. ";
  large["state"] = state;
  std::promise<void> submits;
  std::promise<void> go;
  service_.on_submit = [&, first = true, may_go = go.get_future().share()]() mutable {
    if (!std::exchange(first, false)) return;
    submits.set_value();
    may_go.wait();
  };
  const auto first = ask(large.dump());
  submits.get_future().wait();
  EXPECT_EQ(ask(large.dump())->status.get_future().get(), 429);
  ask(kAsk);
  go.set_value();
  workers.Finish();
  EXPECT_EQ(service_.passes_submitted, 2);
  service_.waiting.clear();
}

TEST_F(DecisionRouteTest, AFullQueueIsToldBeforeQuestionsAreLaidOut) {
  service_.refusal.emplace(429, "full", "", "queue_full");
  const auto reply = Begin("POST", "/v1/systemone", "{");
  EXPECT_EQ(reply->response.status, 429);
  EXPECT_THAT(reply->response.headers, testing::Contains(testing::Pair("Retry-After", testing::_)));
  EXPECT_EQ(service_.passes_submitted, 0);
}

TEST_F(DecisionRouteTest, AStateBeyondTheContextIsRefused) {
  OrderedJson body = OrderedJson::parse(kAsk);
  std::string state;
  for (int i = 0; i < 20'000; ++i) state += "ab ";
  body["state"] = state;
  const auto reply = Post("/v1/systemone", body.dump());
  EXPECT_EQ(reply->response.status, 400);
  const Json error = ErrorOf(*reply);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("maximum context length is"));
}

TEST_F(DecisionRouteTest, WhatQuestionsHoldIsBounded) {
  OrderedJson body = OrderedJson::parse(kAsk);
  OrderedJson who = body["questions"]["who"];
  for (int i = 0; i < 60; ++i) {
    who["instructions"] = std::to_string(i) + " of them: who?";
    body["questions"]["q" + std::to_string(i)] = who;
  }
  const ServedModelPtr model = models_.Find("");
  const auto few = Begin("POST", "/v1/systemone", kAsk);
  const std::size_t held = model->room->held;
  EXPECT_GT(held, 0u);
  service_.Write();
  models_.SetRoom(model->context_length, model->decision_length, 0, 4 * held);
  const auto many = Post("/v1/systemone", body.dump());
  EXPECT_EQ(many->response.status, 400);
  EXPECT_EQ(ErrorOf(*many)["param"], "questions");
  EXPECT_THAT(ErrorOf(*many)["message"].get<std::string>(), HasSubstr("ask fewer"));
  EXPECT_EQ(Post("/v1/systemone", kAsk)->response.status, 200);
  EXPECT_EQ(models_.Find("")->room->held, 0u);
}

// Also of a context that is cut for want of memory.
TEST_F(DecisionRouteTest, PassesArePlannedForTheQuestionsThatAreTaken) {
  LoadedModel& base = models_.base();
  const std::int64_t context = base.config.max_position_embeddings = 32768;
  ServeOptions options = options_;
  options.kv_memory =
      std::to_string(BytesOfPool(base.config, base.precision, 1, context) * 3 / 2) + "B";
  const ServePlan plan = PlanServing(base, models_.All(), models_.planned_adapters(), options, 0);
  ASSERT_LT(plan.limits.positions, context);
  EXPECT_LE(plan.decision_length, plan.limits.positions);
  EXPECT_EQ(plan.limits.alone_rows, plan.decision_length + kMostFurtherRows);
}

}  // namespace
}  // namespace qlora
