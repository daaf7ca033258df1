// The service over an engine and a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "base/text.h"
#include "qlora/error.h"
#include "qlora/model.h"
#include "serve/engine/engine_answer.h"
#include "serve/engine/engine_service_fixture.h"
#include "serve/request_fields.h"
#include "serve/requests/sampling_fields.h"
#include "serve/serve_plan.h"
#include "serve/structured/grammar_edit.h"
#include "serve/structured/json_schema_grammar.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(EngineServiceTest, WritesWhatGenerateWrites) {
  Context context(1);
  ModelOptions options = options_.model;
  options.adapter.clear();
  for (const std::string model : {"", "ada"}) {
    if (model == "ada") options.adapter = {TinyAdapter()};
    Model alone = Model::Load(context, options);
    GenerateOptions generate;
    generate.max_new_tokens = 12;
    const GenerateReport expected = alone.Generate("Once upon a time", generate);
    const Told told = Write(Request("Once upon a time", 12, model));
    EXPECT_EQ(told.text, expected.text) << model;
    EXPECT_EQ(told.end.new_tokens, expected.new_tokens);
    EXPECT_EQ(told.end.prompt_tokens, expected.prompt_tokens);
    EXPECT_EQ(told.end.error, "");
  }
}

TEST_F(EngineServiceTest, TheSameBitsAloneAndAmongOthers) {
  const std::vector<std::string> prompts = {
      "a", "Once upon a time there was", "The end of it all", "xyz", "a b c d e f g", "Hello"};
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(Request(prompts[i], 8, i % 2 == 0 ? "" : "ada"));
    requests.back().options.do_sample = i % 3 == 0;
    requests.back().options.seed = static_cast<std::int64_t>(i);
  }
  std::vector<Told> alone;
  for (const GenerationRequest& request : requests) alone.push_back(Write(request));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Told>> all;
    for (const GenerationRequest& request : requests) all.push_back(Begin(request));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Told told = all[i].get();
      EXPECT_EQ(told.text, alone[i].text) << i;
      EXPECT_EQ(told.logprobs(), alone[i].logprobs()) << i;
    }
  }
  EXPECT_NE(Write(Request("Hello", 8)).logprobs(), Write(Request("Hello", 8, "ada")).logprobs());
}

TEST_F(EngineServiceTest, StopTextsAreCutWithTheirTokens) {
  const Told whole = Write(Request("Once upon a time", 20));
  ASSERT_GT(whole.text.size(), 8u);
  GenerationRequest request = Request("Once upon a time", 20);
  request.stops = {"no such text", whole.text.substr(5, 3)};
  const Told told = Write(request);
  const std::size_t at = whole.text.find(request.stops[1]);
  EXPECT_EQ(told.text, whole.text.substr(0, at));
  EXPECT_EQ(told.end.reason, StopReason::kStopText);
  EXPECT_EQ(told.end.stop, request.stops[1]);
  // All of a text that only might have become a stop text is shown at the end.
  request.stops = {whole.text.substr(whole.text.size() - 2) + "\x01never"};
  EXPECT_EQ(Write(request).text, whole.text);
}

TEST_F(EngineServiceTest, AnAnswerEndsWhereItIsWhole) {
  const Told all = Write(Request("Once upon a time", 20));
  GenerationRequest request = Request("Once upon a time", 20);
  std::string read;
  request.is_whole = [&](std::string_view piece) {
    read += piece;
    return read.size() > 4;
  };
  const Told told = Write(request);
  EXPECT_EQ(told.end.reason, StopReason::kEos);
  EXPECT_LT(told.end.new_tokens, all.end.new_tokens);
  EXPECT_EQ(told.text, read);
  EXPECT_EQ(told.text, all.text.substr(0, read.size()));
}

// Drawn at random from a model that never learned JSON.
TEST_F(EngineServiceTest, AnswersOfAForm) {
  const ServedModelPtr model = models_->Find("");
  const OrderedJson schema = OrderedJson::parse(
      R"({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 3})");
  for (int seed = 0; seed < 5; ++seed) {
    GenerationRequest request = Request("a", 50);
    request.options.do_sample = true;
    request.options.seed = seed;
    request.format = {
        .grammar = std::make_shared<const ByteGrammar>(JsonSchemaGrammar(schema, "schema")),
        .texts = model->token_texts->Get(*model->tokenizer, model->vocabulary)};
    const Told told = Write(request);
    EXPECT_EQ(told.end.reason, StopReason::kEos) << told.end.error;
    const OrderedJson value = OrderedJson::parse(told.text, nullptr, false);
    ASSERT_TRUE(value.is_array()) << told.text;
    EXPECT_GE(value.size(), 1u);
    EXPECT_LE(value.size(), 3u);
  }
}

TEST_F(EngineServiceTest, StopTextsCountBeyondTheLeastLength) {
  GenerationRequest request = Request("Once upon a time", 20);
  request.ignore_eos = true;
  const Told all = Write(request);
  for (const char c : all.text) request.stops.emplace_back(1, c);
  EXPECT_EQ(Write(request).end.reason, StopReason::kStopText);
  request.min_tokens = all.end.new_tokens;
  const Told told = Write(request);
  EXPECT_EQ(told.text, all.text);
  EXPECT_EQ(told.end.reason, all.end.reason);
}

TEST_F(EngineServiceTest, AStopTextCutsAnAnswerOfAForm) {
  const ServedModelPtr model = models_->Find("");
  GenerationRequest request = Request("a", 50);
  const OrderedJson schema = {{"enum", {"one, two"}}};
  request.format = {
      .grammar = std::make_shared<const ByteGrammar>(JsonSchemaGrammar(schema, "schema")),
      .texts = model->token_texts->Get(*model->tokenizer, model->vocabulary)};
  EXPECT_EQ(Write(request).text, "\"one, two\"");
  request.stops = {", t"};
  const Told told = Write(request);
  EXPECT_EQ(told.text, "\"one");
  EXPECT_EQ(told.end.reason, StopReason::kStopText);
}

TEST_F(EngineServiceTest, AFormEndsWhereNoTokenEndsIt) {
  const ServedModelPtr model = models_->Find("");
  GenerationRequest request = Request("a", 50);
  request.format = {.grammar = std::make_shared<const ByteGrammar>(
                        JsonSchemaGrammar(OrderedJson::parse(R"({"const": "one"})"), "schema")),
                    .texts = model->token_texts->Get(*model->tokenizer, model->vocabulary)};
  for (const std::int32_t end : model->prompts->ends()) {
    request.logit_bias.emplace_back(end, -std::numeric_limits<float>::infinity());
  }
  const Told told = Write(request);
  EXPECT_EQ(told.text, "\"one\"");
  EXPECT_EQ(told.end.reason, StopReason::kEos) << told.end.error;
}

// A cut form is the beginning of a whole one.
TEST_F(EngineServiceTest, AFormIsNotCutWithinACharacter) {
  const ServedModelPtr model = models_->Find("");
  const std::string text = "\"\xF0\x9F\x98\x80\"";
  OrderedJson schema = OrderedJson::object();
  schema["const"] = OrderedJson::parse(text);
  for (std::int64_t most = 1; most <= 10; ++most) {
    GenerationRequest request = Request("a", most);
    request.format = {
        .grammar = std::make_shared<const ByteGrammar>(JsonSchemaGrammar(schema, "schema")),
        .texts = model->token_texts->Get(*model->tokenizer, model->vocabulary)};
    const std::string cut(Trim(Write(request).text));
    EXPECT_TRUE(text.starts_with(cut)) << most << cut;
  }
}

// A tokenizer may have tokens that the model has not. The request that has one ends alone.
TEST_F(EngineServiceTest, APromptWithATokenThatTheModelLacks) {
  std::future<Told> other = Begin(Request("Once upon a time", 20));
  GenerationRequest request = Request("a");
  const auto lacks = static_cast<std::int32_t>(models_->base().config.vocab_size);
  request.prompt = std::vector<std::int32_t>{1, lacks, 1};
  EXPECT_EQ(StatusOf(request), 400);
  request.prompt = std::vector<std::int32_t>{1, lacks - 1, 1};
  EXPECT_EQ(StatusOf(request), 200);
  EXPECT_EQ(other.get().end.error, "");
}

TEST_F(EngineServiceTest, AnEndThatTheModelLacksIsNone) {
  ServedModel model = *models_->Find("");
  ASSERT_THAT(model.prompts->ends(), testing::ElementsAre(2));
  for (const std::int64_t vocabulary : {3, 2}) {
    model.vocabulary = vocabulary;
    EngineAnswer answer(std::make_shared<const ServedModel>(model), Request("a"), {}, 10);
    EXPECT_EQ(answer.TakeRequest().ends.size(), vocabulary == 3 ? 1u : 0u);
  }
}

// Nothing is chosen where no token is left, and the error names the field that leaves none.
TEST_F(EngineServiceTest, ARequestThatLeavesNoToken) {
  const ServedModelPtr model = models_->Find("");
  GenerationRequest request = Request("a", 5);
  for (std::int32_t token = 0; token < model->vocabulary; ++token) {
    request.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  }
  for (const bool samples : {false, true}) {
    request.options.do_sample = samples;
    const Told told = Write(request);
    EXPECT_EQ(told.text, "");
    EXPECT_EQ(told.end.field, "logit_bias");
    EXPECT_THAT(told.end.error, HasSubstr("no token"));
  }
  request.format = {.grammar = std::make_shared<const ByteGrammar>(JsonObjectGrammar()),
                    .texts = model->token_texts->Get(*model->tokenizer, model->vocabulary),
                    .path = "response_format"};
  EXPECT_EQ(Write(request).end.field, "response_format");
  EXPECT_EQ(Write(Request("a", 2)).end.error, "") << "others go on";
}

TEST_F(EngineServiceTest, EndsOfAnAnswer) {
  GenerationRequest request = Request("a", 6);
  request.logit_bias = {{2, 100.0F}};  // </s>
  Told told = Write(request);
  EXPECT_EQ(told.end.reason, StopReason::kEos);
  EXPECT_EQ(told.end.new_tokens, 1);
  EXPECT_EQ(told.text, "");
  EXPECT_TRUE(told.tokens.empty());
  request.min_tokens = 3;
  told = Write(request);
  EXPECT_EQ(told.end.reason, StopReason::kEos);
  EXPECT_EQ(told.end.new_tokens, 4);
  request.ignore_eos = true;
  told = Write(request);
  EXPECT_EQ(told.end.reason, StopReason::kMaxNewTokens);
  EXPECT_EQ(told.end.new_tokens, 6);
  GenerationRequest longer = Request("Once upon a time", 1000);
  longer.ignore_eos = true;
  told = Write(longer);
  EXPECT_EQ(told.end.reason, StopReason::kContext);
  EXPECT_EQ(told.end.prompt_tokens + told.end.new_tokens, 64);
}

TEST_F(EngineServiceTest, SeedsDecideDraws) {
  GenerationRequest request = Request("Once", 16);
  request.options.do_sample = true;
  request.options.seed = ChoiceSeed(5, 0);
  const std::string first = Write(request).text;
  EXPECT_EQ(Write(request).text, first);
  request.options.seed = ChoiceSeed(5, 1);
  EXPECT_NE(Write(request).text, first);
  EXPECT_EQ(ChoiceSeed(5, 0), 5);
}

TEST_F(EngineServiceTest, LogprobsOfThePromptAreThoseOfScore) {
  GenerationRequest request = Request("Once upon a time", 1);
  request.wants_prompt_logprobs = true;
  const Told told = Write(request);
  ASSERT_EQ(told.prompt.size(), request.prompt.size());
  double sum = 0;
  for (const AnswerToken& token : told.prompt) sum += token.logprob;
  for (std::size_t i = 1; i < told.prompt.size(); ++i) EXPECT_EQ(told.prompt[i].top.size(), 2u);
  EXPECT_EQ(told.tokens.size(), 1u);
  GenerationRequest none = request;
  none.options.max_new_tokens = 0;
  const Told scored = Write(none);
  EXPECT_EQ(scored.prompt.size(), request.prompt.size());
  EXPECT_TRUE(scored.tokens.empty());
  EXPECT_EQ(scored.text, "");
  EXPECT_EQ(scored.end.new_tokens, 0);
  EXPECT_EQ(scored.end.reason, StopReason::kMaxNewTokens);
  GenerationRequest ended = request;
  ended.logit_bias = {{2, 100.0F}};  // </s>
  const Told end = Write(ended);
  ASSERT_EQ(end.tokens.size(), 1u) << "clients leave out one token behind the prompt";
  EXPECT_EQ(end.tokens[0].token, 2);
  EXPECT_EQ(end.tokens[0].characters, 0);
  EXPECT_EQ(end.text, "");
  Context context(1);
  ModelOptions options = options_.model;
  options.adapter.clear();
  Model model = Model::Load(context, options);
  const ScoreRequest score = {{request.prompt.front()},
                              {{request.prompt.begin() + 1, request.prompt.end()}}};
  EXPECT_NEAR(sum, model.Score({&score, 1})[0][0].logprob, 1e-3);
}

TEST_F(EngineServiceTest, WhatHasNoPlaceIsRefused) {
  try {
    Write(Request(std::string(200, 'x'), 1));
    FAIL() << "nothing was thrown";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_THAT(error.message, HasSubstr("maximum context length is 64 tokens"));
  }
  EXPECT_EQ(StatusOfModel("no such model"), 404);
  EXPECT_EQ(StatusOf(GenerationRequest()), 400);
  Start({.sequences = 1, .queue = 1, .positions = 64, .rows = 64});
  std::promise<void> held;
  std::promise<void> go;
  std::shared_future<void> may_go = go.get_future().share();
  std::thread holder([&] {
    service_->RunAlone([&] {
      held.set_value();
      may_go.wait();
    });
  });
  held.get_future().wait();  // before, answers would be written, and make room
  std::vector<std::future<Told>> taken;
  taken.push_back(Begin(Request("a", 2)));
  taken.push_back(Begin(Request("b", 2)));
  EXPECT_EQ(StatusOf(Request("c", 2)), 429);
  go.set_value();
  holder.join();
  for (auto& told : taken) EXPECT_EQ(told.get().end.error, "");
  EXPECT_EQ(StatusOf(Request("c", 2)), 200);
  service_->Refuse();
  EXPECT_EQ(StatusOf(Request("c", 2)), 503);
}

TEST_F(EngineServiceTest, CancelledAnswersSayNothingMore) {
  std::promise<GenerationId> number;
  std::shared_future<GenerationId> id = number.get_future().share();
  std::atomic<int> pieces = 0;
  std::atomic<int> ends = 0;
  GenerationRequest request = Request("Once", 50);
  request.ignore_eos = true;
  number.set_value(service_->Submit(request, {.on_piece =
                                                  [&, id](const GenerationPiece&) {
                                                    ++pieces;
                                                    service_->Cancel(id.get());
                                                  },
                                              .on_end = [&](const GenerationEnd&) { ++ends; }}));
  EXPECT_TRUE(service_->WaitUntilIdle(std::chrono::minutes(1)));
  EXPECT_EQ(ends, 0);
  EXPECT_EQ(pieces, 1);
  EXPECT_THAT(metrics_.Text(), HasSubstr("qlora_requests_cancelled_total 1\n"));
  EXPECT_EQ(StatusOf(Request("a", 2)), 200);
}

TEST_F(EngineServiceTest, AFaultEndsWhatItTouchesAndNothingElse) {
  GenerationRequest broken = Request("a", 4);
  broken.logit_bias = {{5, std::numeric_limits<float>::quiet_NaN()}};
  EXPECT_THAT(Write(broken).end.error, HasSubstr("NaN"));
  EXPECT_EQ(Write(Request("a", 4)).end.error, "");
  EXPECT_THROW(service_->RunAlone([] { throw std::runtime_error("no"); }), std::runtime_error);
  bool ran = false;
  service_->RunAlone([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST_F(EngineServiceTest, TheEndOfTheServiceEndsAnswers) {
  GenerationRequest request = Request("Once", 50);
  request.ignore_eos = true;
  std::vector<std::future<Told>> all;
  for (int i = 0; i < 6; ++i) all.push_back(Begin(request));
  service_.reset();
  for (auto& told : all) {
    const GenerationEnd end = told.get().end;
    EXPECT_EQ(end.error, end.new_tokens == 50 ? "" : "the server was stopped");
  }
}

TEST_F(EngineServiceTest, ThePlanCountsWhatBodiesBecome) {
  constexpr std::size_t kBody = 1 << 20;
  const auto requests = [&](std::size_t bodies) {
    const ServePlan plan =
        PlanServing(models_->base(), models_->All(), models_->planned_adapters(), options_, bodies);
    return std::ranges::find(plan.parts, "requests", &MemoryPart::name)->bytes;
  };
  EXPECT_GE(requests(0), static_cast<std::size_t>(kMostBodyValues * kJsonValueBytes));
  EXPECT_EQ(requests(kBody), requests(0) + 54 * kBody);
  // However large the machine is.
  options_.max_memory = "1TiB";
  EXPECT_LT(requests(0) + 54 * BytesOfBodies(options_), std::size_t{1} << 30);
  const std::size_t without = requests(kBody);
  options_.log_requests = "folder";
  EXPECT_EQ(requests(kBody), without + 2 * BytesOfLog(kBody));
}

// Any answer may have a form, and all token texts with it.
TEST_F(EngineServiceTest, ThePlanCountsAnswersThatAreWritten) {
  const ServePlan plan =
      PlanServing(models_->base(), models_->All(), models_->planned_adapters(), options_, 0);
  const std::size_t bytes = std::ranges::find(plan.parts, "answers", &MemoryPart::name)->bytes;
  const std::int64_t vocabulary = models_->base().config.vocab_size;
  const auto sequences = static_cast<std::size_t>(plan.limits.sequences);
  EXPECT_GE(bytes, sequences * GrammarEdit::MostBytes(vocabulary));
  EXPECT_LT(bytes, 2 * sequences * GrammarEdit::MostBytes(vocabulary));
}

class LaterAdapterTest : public EngineServiceTest {
 protected:
  LaterAdapterTest() : EngineServiceTest({}, TinyAdapter()) {
    models_->SetRunAlone([this](const auto& work) { service_->RunAlone(work); });
  }
};

TEST_F(LaterAdapterTest, AdaptersComeAndGo) {
  const Told base = Write(Request("Once upon", 8));
  EXPECT_EQ(StatusOfModel("late"), 404);
  EXPECT_THROW(models_->Load("late", folder_.path().string()), ApiError);
  models_->Load("late", TinyAdapter());
  EXPECT_THROW(models_->Load("late", TinyAdapter()), ApiError);
  EXPECT_THROW(models_->Load("tiny", TinyAdapter()), ApiError);
  std::future<Told> one = Begin(Request("Once upon", 8));
  std::future<Told> two = Begin(Request("Once upon", 8, "late"));
  EXPECT_EQ(one.get().logprobs(), base.logprobs());
  const Told late = two.get();
  EXPECT_NE(late.logprobs(), base.logprobs());
  EXPECT_EQ(models_->Find("late")->parent, "tiny");
  EXPECT_NE(models_->Find("late")->fingerprint, models_->Find("")->fingerprint);
  const GenerationRequest asked = Request("Once upon", 8, "late");
  models_->Unload("late");
  // What a request was read for answers it, whatever has its name since.
  EXPECT_EQ(Write(asked).logprobs(), late.logprobs());
  EXPECT_EQ(StatusOfModel("late"), 404);
  EXPECT_THROW(models_->Unload("late"), ApiError);
  EXPECT_THROW(models_->Unload("tiny"), ApiError);
  // The keys of one that is gone serve no other.
  models_->Load("again", TinyAdapter());
  EXPECT_EQ(Write(Request("Once upon", 8, "again")).logprobs(), late.logprobs());
  EXPECT_EQ(Write(Request("Once upon", 8)).logprobs(), base.logprobs());
}

// Nothing else needs to be asked first.
TEST_F(LaterAdapterTest, AnUnloadedAdapterTakesNoMemory) {
  models_->Load("late", TinyAdapter());
  EXPECT_EQ(Write(Request("Once upon", 8, "late")).end.error, "");
  EXPECT_TRUE(service_->WaitUntilIdle(std::chrono::minutes(1)));
  const std::weak_ptr<const LoraAdapter> adapter = models_->Find("late")->adapter;
  models_->Unload("late");
  EXPECT_TRUE(adapter.expired());
}

}  // namespace
}  // namespace qlora
