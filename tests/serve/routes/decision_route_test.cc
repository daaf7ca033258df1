// Decisions over a tiny model that was trained to decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
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

class DecisionRouteTest : public testing::Test {
 protected:
  DecisionRouteTest() {
    AddDecisionRoutes(table_, server_);
    const LoadedModel& base = models_.base();
    generation_.decoder.emplace(*base.backend, base.config, base.weights, base.precision,
                                base.config.max_position_embeddings);
  }

  static ServeOptions Options() {
    ServeOptions options;
    options.model.model_name_or_path = (SourceDir() / "tests/golden/decision/tiny-qwen3").string();
    options.model.compute_dtype = "float32";
    options.served_model_name = "tiny";
    return options;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const std::string& body) {
    auto reply = Begin(path, body);
    generation_.Write();
    return reply;
  }
  // Waits until a worker has run the route; no part is run yet.
  std::shared_ptr<FakeReply> Begin(const std::string& path, const std::string& body) {
    auto reply = std::make_shared<FakeReply>();
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.headers = {{"content-type", "application/json"}};
    request.body = body;
    table_.Handle(std::move(request), reply);
    WaitForWorker();
    return reply;
  }
  void WaitForWorker() {
    std::promise<void> done;
    workers_.Run([&done] { done.set_value(); });
    done.get_future().wait();
  }

  Context context_{1};
  const ServeOptions options_ = Options();
  Metrics metrics_;
  ScriptedGeneration generation_;
  Workers workers_{1};
  LoadedModels models_{context_, options_, "1", ProgressFn()};
  Server server_{.models = models_,
                 .generation = generation_,
                 .metrics = metrics_,
                 .options = options_,
                 .workers = workers_,
                 .log = [](const std::string&) {},
                 .base = &models_.base()};
  RouteTable table_{server_};
};

TEST_F(DecisionRouteTest, AnswersAsTheModelAlone) {
  Model model = Model::Load(context_, options_.model);
  EXPECT_EQ(Post("/v1/systemone", kAsk)->body, model.Decide(kAsk));
  EXPECT_EQ(Post("/v1/decisions", kDecide)->body, model.Decide(kDecide));
  EXPECT_EQ(Post("/v1/systemone", kAsk)->body, model.Decide(kAsk));
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

TEST_F(DecisionRouteTest, RefusesWithTheQuestion) {
  const auto asked = [](const std::string& question) {
    return R"({"state": "x", "questions": {"odd": )" + question + "}}";
  };
  std::string options, levels;
  for (int i = 0; i < 27; ++i) options += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": null";
  for (int i = 0; i < 11; ++i) levels += (i ? ", \"l" : "\"l") + std::to_string(i) + "\"";
  for (const std::string& question :
       {std::string("5"), std::string(R"({"type": "guess", "instructions": "x"})"),
        std::string(R"({"type": "noul"})"),
        R"({"type": "choice", "instructions": "x", "criteria": {)" + options + "}}",
        R"({"type": "score", "instructions": "x", "criteria": [)" + levels + "]}"}) {
    const auto reply = Post("/v1/systemone", asked(question));
    EXPECT_EQ(reply->response.status, 400) << question;
    EXPECT_THAT(reply->body, HasSubstr("odd")) << question;
  }
}

TEST_F(DecisionRouteTest, RefusesTheOtherForm) {
  const std::pair<const char*, std::string> wrong[] = {
      {"/v1/systemone", "{"},
      {"/v1/systemone", "[]"},
      {"/v1/systemone", R"({"state": "x"})"},
      {"/v1/systemone", R"({"state": "x", "questions": {}})"},
      {"/v1/systemone", R"({"state": "x", "questions": []})"},
      {"/v1/systemone", kDecide},
      {"/v1/decisions", kAsk},
      {"/v1/decisions", R"({"input": [], "questions": [{"type": "predicate",
          "instructions": "x"}]})"},
      {"/v1/decisions", R"({"input": [{"role": "user", "content": [{"type": "input_image",
          "image_url": "data:x"}]}], "questions": [{"type": "predicate", "instructions": "x"}]})"},
      {"/v1/decisions", R"({"stream": true, "input": "x", "questions": [{"type": "predicate",
          "instructions": "x"}]})"}};
  for (const auto& [path, body] : wrong) {
    EXPECT_EQ(Post(path, body)->response.status, 400) << body;
  }
  EXPECT_EQ(Post("/v1/systemone", R"({"model": "other", "state": "x", "questions": {"a":
      {"type": "noul", "instructions": "x"}}})")
                ->response.status,
            404);
}

// The memory for passes is planned: it is enough, and is not replaced. A state is read once for
// several questions, also where it leaves little room for them.
TEST_F(DecisionRouteTest, PassesStayInPlannedMemory) {
  const ServePlan plan = PlanServing(models_.base(), models_.All(), options_, 0);
  ReservePass(*generation_.decoder, {}, plan.limits.alone_rows, plan.limits.alone_unfolded,
              generation_.memory);
  const std::byte* planned = generation_.memory.data();
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
    EXPECT_EQ(generation_.memory.data(), planned);
    EXPECT_GT(generation_.parts, 1);
    EXPECT_LT(generation_.parts, 20) << "for 100 questions";
  }
}

TEST_F(DecisionRouteTest, ADecisionEndsWhenItsClientLeaves) {
  const auto reply = Begin("/v1/systemone", kAsk);
  ASSERT_EQ(generation_.passes_submitted, 1);
  reply->gone();
  EXPECT_THAT(generation_.cancelled, testing::ElementsAre(0));
  generation_.Write();
  EXPECT_FALSE(reply->ended);
}

TEST_F(DecisionRouteTest, WhatNobodyWaitsForIsNotLaidOut) {
  std::promise<void> go;
  workers_.Run([may_go = go.get_future().share()] { may_go.wait(); });
  auto reply = std::make_shared<FakeReply>();
  table_.Handle({.method = "POST",
                 .path = "/v1/systemone",
                 .headers = {{"content-type", "application/json"}},
                 .body = kAsk},
                reply);
  reply->gone();
  go.set_value();
  WaitForWorker();
  EXPECT_EQ(generation_.passes_submitted, 0);
  EXPECT_FALSE(reply->ended);
}

TEST_F(DecisionRouteTest, AFullQueueIsToldBeforeQuestionsAreLaidOut) {
  generation_.passes_are_refused = true;
  const auto reply = Begin("/v1/systemone", "{");
  EXPECT_EQ(reply->response.status, 429);
  EXPECT_THAT(reply->response.headers, testing::Contains(testing::Pair("Retry-After", testing::_)));
  EXPECT_EQ(generation_.passes_submitted, 0);
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
  const auto few = Begin("/v1/systemone", kAsk);
  const std::size_t held = model->room->held;
  EXPECT_GT(held, 0u);
  generation_.Write();
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
  const ServePlan plan = PlanServing(base, models_.All(), options, 0);
  ASSERT_LT(plan.limits.positions, context);
  EXPECT_LE(plan.decision_length, plan.limits.positions);
  EXPECT_EQ(plan.limits.alone_rows, plan.decision_length + kMostFurtherRows);
}

}  // namespace
}  // namespace qlora
