// What an engine does with its slots, prompts and answers. engine_bits_test.cc: their bits.
#include "inference/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "pass/decoder_families.h"
#include "qlora/error.h"

namespace qlora {
namespace {

class EngineRun : public testing::Test {
 protected:
  static constexpr std::int64_t kPositions = 180;

  const DecoderConfig config_ = TinyConfig();
  const RandomWeights weights_{config_, DType::kF32, 3};
  Context context_{1};
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(context_, DType::kF32);
  const Decoder decoder_{
      *backend_, config_, weights_.get(), {DType::kF32, DType::kF32}, kPositions};
  const LoraAdapter adapter_ = RandomAdapter(config_, 2, DType::kF32, 5);
  Arena memory_ = ReserveSlots(decoder_, {&adapter_}, 8);
  EvalMemory passes_{decoder_, {&adapter_}, memory_};
  const PoolMemory pool_{backend_->memory(), config_, {DType::kF32, DType::kF32}, 2, kPositions};
  Engine engine_{decoder_, passes_, pool_.pool(), 8};
};

TEST_F(EngineRun, ACancelledRequestFreesItsSlot) {
  EngineRequest request{.prompt = {1, 2, 3}};
  request.options.max_new_tokens = 50;
  const RequestId first = engine_.Submit(request);
  const RequestId second = engine_.Submit(request);
  const RequestId third = engine_.Submit(request);
  const std::vector<EngineToken> tokens = engine_.Step();
  ASSERT_EQ(tokens.size(), 2u);  // two slots
  EXPECT_EQ(tokens[0].request, first);
  EXPECT_EQ(tokens[1].request, second);
  EXPECT_EQ(tokens[0].token, tokens[1].token);
  engine_.Cancel(first);
  engine_.Step();  // second's next token, and the prompt of the third
  EXPECT_EQ(engine_.Step().back().request, third);
  engine_.Cancel(second);
  engine_.Cancel(third);
  engine_.Cancel(third);  // again: nothing happens
  EXPECT_TRUE(engine_.is_idle());
  EXPECT_TRUE(engine_.Step().empty());
}

TEST_F(EngineRun, AnswersEndWhereTheyAreTold) {
  EngineRequest request{.prompt = {1, 2, 3}};
  request.options.max_new_tokens = 3;
  engine_.Submit(request);
  std::vector<EngineToken> tokens;
  while (!engine_.is_idle()) tokens.push_back(engine_.Step().front());
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_TRUE(!tokens[1].is_last && tokens[2].is_last && !tokens[2].is_end);
  request.ends = {tokens[0].token};
  engine_.Submit(request);
  const std::vector<EngineToken> ended = engine_.Step();
  EXPECT_TRUE(ended.front().is_end && ended.front().is_last && engine_.is_idle());
}

// As long ones are.
TEST_F(EngineRun, ShortPromptsAreReadAtThePaceOfPrompts) {
  EngineRequest request{.prompt = {1, 2, 3, 4, 5}};
  request.options.max_new_tokens = 20;
  const RequestId first = engine_.Submit(request);
  const RequestId second = engine_.Submit(request);
  const std::vector<EngineToken> tokens = engine_.Step(9);
  ASSERT_EQ(tokens.size(), 1u) << "both have ten tokens";
  EXPECT_EQ(tokens[0].request, first);
  EXPECT_EQ(engine_.Step(4).size(), 2u) << "one is always read";
  EXPECT_EQ(engine_.Step(4).back().request, second);
}

// Prompts take the rows that sequences leave, however long they are.
TEST_F(EngineRun, APromptKeepsNobodyWaiting) {
  EngineRequest request{.prompt = {1}};
  request.options.max_new_tokens = 20;
  const RequestId first = engine_.Submit(request);
  engine_.Step();
  request.prompt = std::vector<std::int32_t>(40, 2);
  const RequestId second = engine_.Submit(request);
  for (int step = 0; step < 4; ++step) {  // 40 tokens, 8 rows at a time
    const std::vector<EngineToken> tokens = engine_.Step();
    ASSERT_EQ(tokens.size(), 1u);
    EXPECT_EQ(tokens[0].request, first);
  }
  EXPECT_EQ(engine_.Step().back().request, second);
}

TEST_F(EngineRun, PromptsOfTheBaseAndOfAnAdapterShareAPass) {
  Arena memory = ReserveSlots(decoder_, {&adapter_}, 20);
  EvalMemory passes(decoder_, {&adapter_}, memory);
  Engine engine(decoder_, passes, pool_.pool(), 20);
  EngineRequest request;
  request.prompt = std::vector<std::int32_t>(10, 2);
  request.options.max_new_tokens = 1;
  engine.Submit(request);
  request.adapter = &adapter_;
  engine.Submit(request);
  EXPECT_EQ(engine.Step().size(), 2u);
}

TEST_F(EngineRun, AShortPromptGoesBeforeALongOneButNotForever) {
  EngineRequest request;
  request.prompt = std::vector<std::int32_t>(100, 2);
  request.options.max_new_tokens = 1;
  const RequestId large = engine_.Submit(request);
  engine_.Step();
  std::vector<std::int32_t> small(9, 3);
  std::vector<RequestId> done;
  for (int step = 0; step < 80 && std::ranges::find(done, large) == done.end(); ++step) {
    if (engine_.running() == 1) {
      small[0] = step % 20;
      request.prompt = small;
      engine_.Submit(request);
    }
    for (const EngineToken& token : engine_.Step()) done.push_back(token.request);
  }
  ASSERT_FALSE(done.empty());
  EXPECT_NE(done.front(), large);
  EXPECT_EQ(done.back(), large);
}

// Of a prompt that begins like another one of the same adapter, the rest is read.
TEST_F(EngineRun, ASlotKeepsItsPromptForItsAdapter) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t n = 0; n < 30; ++n) prompt.push_back(n % 7 + n / 7);
  EngineRequest request{.prompt = prompt};
  request.options.max_new_tokens = 3;
  const auto cached = [&](const EngineRequest& next) {
    engine_.Submit(next);
    std::int64_t tokens = 0;
    while (!engine_.is_idle()) {
      for (const EngineToken& token : engine_.Step()) tokens += token.cached;
    }
    return tokens;
  };
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(cached(request), 29);  // the last one is read for its logits
  EngineRequest alone = request;
  alone.keeps_prompt = false;
  EXPECT_EQ(cached(alone), 0);
  EXPECT_EQ(cached(alone), 0);
  EXPECT_EQ(cached(request), 0);  // both slots had those that are not kept
  EXPECT_EQ(cached(request), 29);
  EngineRequest other = request;
  prompt[20] = 9;
  other.prompt = prompt;
  EXPECT_EQ(cached(other), 20);
  prompt.resize(kShortPrompt);
  other.prompt = prompt;
  EXPECT_EQ(cached(other), 0);
  request.adapter = &adapter_;
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(cached(request), 29);
  engine_.Forget(&adapter_);
  EXPECT_EQ(cached(request), 0);
  request.keeps_prompt = false;
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(cached(request), 0);
}

// What a token of the prompt has is what a request for the tokens before it would find.
TEST_F(EngineRun, APromptHasTheLogprobsOfItsTokens) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t n = 0; n < 20; ++n) prompt.push_back(n * n % 11);
  EngineRequest request{.prompt = prompt};
  request.options.max_new_tokens = 1;
  request.top_logprobs = decoder_.config().vocab_size;
  request.wants_prompt_logprobs = true;
  const auto first = [&](const EngineRequest& next) {
    engine_.Submit(next);
    std::vector<EngineToken> tokens;
    while (tokens.empty()) tokens = engine_.Step();
    return tokens.front();
  };
  const std::vector<ScoredToken> scored = first(request).prompt;
  ASSERT_EQ(std::ssize(scored), 19);
  for (std::int64_t n = kShortPrompt + 1; n < 20; ++n) {
    EngineRequest before = request;
    before.prompt = std::vector<std::int32_t>(prompt.begin(), prompt.begin() + n);
    before.wants_prompt_logprobs = false;
    EXPECT_EQ(scored[n - 1].top, first(before).top) << n;
    EXPECT_EQ(scored[n - 1].token.token, prompt[n]);
    EXPECT_TRUE(std::ranges::count(scored[n - 1].top, scored[n - 1].token) == 1);
  }
}

// While a sequence reads a long prompt, those with the same one wait for its keys.
TEST_F(EngineRun, EqualPromptsAreReadOnce) {
  EngineRequest request;
  request.prompt = std::vector<std::int32_t>(100, 2);
  request.options.max_new_tokens = 2;
  engine_.Submit(request);
  engine_.Submit(request);
  std::int64_t cached = 0;
  int steps = 0;
  for (; !engine_.is_idle(); ++steps) {
    for (const EngineToken& token : engine_.Step()) cached += token.cached;
  }
  EXPECT_GE(cached, 32);
  EXPECT_LT(cached, 100);
  EXPECT_LT(steps, 25);
}

TEST_F(EngineRun, LogitsMayBeChangedBeforeATokenIsChosen) {
  EngineRequest request{.prompt = {1, 2, 3}};
  request.options.max_new_tokens = 3;
  request.top_logprobs = 1;
  std::vector<std::size_t> answers;
  request.edit = [&](std::span<const std::int32_t> answer, std::span<float> logits) {
    answers.push_back(answer.size());
    std::ranges::fill(logits, -1.0f);
    logits[5] = 0;
  };
  engine_.Submit(request);
  while (!engine_.is_idle()) {
    const EngineToken token = engine_.Step().front();
    EXPECT_EQ(token.token, 5);
    ASSERT_EQ(token.top.size(), 1u);
    // Of the model.
    EXPECT_LE(token.logprob, token.top.front().logprob);
    EXPECT_LT(token.top.front().logprob, 0);
  }
  EXPECT_EQ(answers, (std::vector<std::size_t>{0, 1, 2}));
}

TEST_F(EngineRun, RefusesWhatNoSlotHolds) {
  EngineRequest request;
  EXPECT_THROW(engine_.Submit(request), Error);
  request.prompt = std::vector<std::int32_t>(kPositions, 1);
  request.options.max_new_tokens = 2;
  EXPECT_THROW(engine_.Submit(request), Error);
  request.options.max_new_tokens = 1;
  request.options.temperature = -1;
  EXPECT_THROW(engine_.Submit(request), Error);
  EXPECT_TRUE(engine_.is_idle());
}

}  // namespace
}  // namespace qlora
