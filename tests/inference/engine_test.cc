// A request has the same bits whoever else is in the passes, and however its prompt is cut.
#include "inference/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/simd_kernels.h"
#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/decoder_families.h"
#include "pass/dora.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// The tokens of a request, each before the likeliest ones, with their log-probabilities.
using Line = std::vector<std::vector<TokenLogprob>>;

struct Sizes {
  std::int64_t slots = 1;
  std::int64_t rows = kMostPromptRows;  // of a pass
  std::int64_t prompt_rows = kMostPromptRows;
};

constexpr std::int64_t kPositions = 180;

// Of products in 8 bits, which are those with quantized weights.
constexpr Precision kInt8 = {DType::kBF16, DType::kF32, FrozenProducts::kInt8Forward};
const std::vector<Precision> kPrecisions = {Precision{}, Precision{DType::kBF16}, kInt8};

// Of the prompt.
std::vector<ScoredToken> ScoresOf(const EngineToken& token) {
  return token.prompt == nullptr ? std::vector<ScoredToken>() : *token.prompt;
}

// A decoder with adapters, and requests for them.
class Requests {
 public:
  Requests(const Decoder& decoder, std::vector<const LoraAdapter*> adapters)
      : decoder_(decoder), adapters_(std::move(adapters)) {
    const auto vocab = static_cast<std::uint64_t>(decoder.config().vocab_size);
    const std::vector<std::int64_t> lengths = {1, 150, 7, 23, 67, 5};
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> prompt;
      for (std::int64_t n = 0; n < lengths[r]; ++n) {
        const RandomKey key = MakeKey(5, RandomPlace::kTest, r);
        prompt.push_back(
            static_cast<std::int32_t>(RandomBelow(key, static_cast<std::uint64_t>(n), vocab)));
      }
      EngineRequest& request = all_.emplace_back();
      request.prompt = std::move(prompt);
      // The base, then each adapter, in turn.
      const std::size_t which = r % (adapters_.size() + 1);
      request.adapter = which == 0 ? nullptr : adapters_[which - 1];
      request.top_logprobs = 2;
      request.options.max_new_tokens = 4 + static_cast<std::int64_t>(r);
      request.options.do_sample = r % 2 == 1;
      request.options.temperature = 0.8;
      request.options.seed = static_cast<std::int64_t>(r);
      // A long prompt and a short one.
      request.wants_prompt_logprobs = r == 3 || r == 5;
    }
  }

  // rounds: the requests are submitted so often, each time when the others are done.
  std::vector<Line> Write(const std::vector<EngineRequest>& requests, const Sizes& sizes,
                          int rounds = 1) const {
    const std::int64_t rows = std::max(sizes.rows, Engine::LeastRows(decoder_.config()));
    Arena memory = ReserveSlots(decoder_, adapters_, rows);
    EvalMemory passes(decoder_, adapters_, memory);
    const PoolMemory pool(decoder_.backend().memory(), decoder_.config(), decoder_.precision(),
                          sizes.slots, kPositions);
    Engine engine(decoder_, passes, pool.pool(), rows);
    std::vector<Line> all;
    for (int round = 0; round < rounds; ++round) {
      std::map<RequestId, Line> lines;
      for (const EngineRequest& request : requests) lines[engine.Submit(request)];
      while (!engine.is_idle()) {
        for (const EngineToken& token : engine.Step(sizes.prompt_rows)) {
          Line& line = lines[token.request];
          for (const ScoredToken& scored : ScoresOf(token)) {
            line.push_back({scored.token});
            line.back().insert(line.back().end(), scored.top.begin(), scored.top.end());
          }
          line.push_back({{token.token, token.logprob}});
          line.back().insert(line.back().end(), token.top.begin(), token.top.end());
        }
      }
      for (auto& [id, line] : lines) all.push_back(std::move(line));
    }
    return all;
  }

  // Each alone, its prompt at once.
  std::vector<Line> WriteAlone() const {
    std::vector<Line> lines;
    for (const EngineRequest& request : all_) lines.push_back(Write({request}, {}).front());
    return lines;
  }

  void ExpectSameBitsInAnyCompany() const {
    const std::vector<Line> alone = WriteAlone();
    for (std::size_t r = 0; r < all_.size(); ++r) {
      const std::int64_t scored =
          all_[r].wants_prompt_logprobs ? std::ssize(all_[r].prompt) - 1 : 0;
      EXPECT_EQ(std::ssize(alone[r]), scored + all_[r].options.max_new_tokens);
    }
    for (const Sizes& sizes :
         {Sizes{6, 1000}, Sizes{6, 1000, 13}, Sizes{2, 70}, Sizes{3, 1, 1}, Sizes{6, 200, 9}}) {
      EXPECT_EQ(Write(all_, sizes), alone)
          << sizes.slots << " slots, " << sizes.rows << ", " << sizes.prompt_rows << " rows";
    }
    // And where slots have prompts, or parts of them, of earlier requests.
    std::vector<EngineRequest> several = all_;
    std::vector<Line> expected = alone;
    several.push_back(all_[4]);
    std::vector<std::int32_t> prompt = all_[4].prompt;
    prompt.resize(33);
    prompt.back() = 1;
    several.back().prompt = std::move(prompt);
    expected.push_back(Write({several.back()}, {}).front());
    for (std::size_t r = 0; r < several.size(); ++r) expected.push_back(expected[r]);
    for (const std::int64_t slots : {1, 3, 7}) {
      EXPECT_EQ(Write(several, {slots, 50}, 2), expected) << slots << " slots";
    }
  }

 private:
  const Decoder& decoder_;
  std::vector<const LoraAdapter*> adapters_;
  std::vector<EngineRequest> all_;
};

class EngineTest : public testing::TestWithParam<TestedFamily> {
 protected:
  static void ExpectSameBits(const DecoderConfig& config, Backend& backend,
                             const Precision& precision, bool quantize) {
    const RandomWeights weights(config, DType::kF32, 3, quantize);
    LoraAdapter first = RandomAdapter(config, 2, DType::kF32, 5);
    first.Pack(precision.activation);
    const LoraAdapter second = RandomAdapter(config, 5, DType::kF32, 6);
    const Decoder decoder(backend, config, weights.get(), precision, kPositions);
    Requests(decoder, {&first, &second}).ExpectSameBitsInAnyCompany();
  }
};

TEST_P(EngineTest, SameBitsInAnyCompany) {
  Context context(2);
  for (const Precision& precision : kPrecisions) {
    const auto backend = MakeCpuBackend(context, precision);
    for (const bool quantize : {false, true}) {
      if (!quantize && precision.frozen != FrozenProducts::kFloat) continue;
      SCOPED_TRACE(quantize);
      ExpectSameBits(GetParam().config, *backend, precision, quantize);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineTest, testing::ValuesIn(Families()),
                         [](const auto& test) { return test.param.name; });

// Sequences that grow beyond the original context read their tokens again, with other frequencies.
TEST(Engine, SameBitsBeyondTheOriginalContextOfLongrope) {
  DecoderConfig config = TinyConfig();
  RopeConfig& rope = config.ropes[0];
  rope.type = RopeType::kLongrope;
  rope.original_max_position_embeddings = 9;
  rope.attention_factor = 1.2;
  rope.short_factor.assign(rope.rotary_dim / 2, 1.0);
  rope.long_factor.assign(rope.rotary_dim / 2, 4.0);
  for (const Mixer mixer : {Mixer::kAttention, Mixer::kDeltaRule, Mixer::kShortConv}) {
    config.layers[0].mixer = mixer;
    config.conv_taps = 3;
    config.delta_rule = {.heads = 4, .key_heads = 2, .key_dim = 3, .value_dim = 5};
    Context context(2);
    const auto backend = MakeCpuBackend(context, DType::kF32);
    const RandomWeights weights(config, DType::kF32, 3);
    const Decoder decoder(*backend, config, weights.get(), {DType::kF32, DType::kF32}, kPositions);
    Requests(decoder, {}).ExpectSameBitsInAnyCompany();
  }
}

TEST(Engine, SameBitsWithDora) {
  const DecoderConfig config = TinyConfig();
  Context context(2);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const RandomWeights weights(config, DType::kF32, 3);
  const LoraAdapter first = RandomAdapter(config, 2, DType::kF32, 5);
  AdapterConfig dora;
  dora.use_dora = true;
  LoraAdapter second = RandomAdapter(config, 3, DType::kF32, 6, 0, dora);
  backend->Reserve(LimitsOf(config, {&first, &second}, 8, 8));
  RefreshNorms(*backend, weights.get(), second);
  const Decoder decoder(*backend, config, weights.get(), {DType::kF32, DType::kF32}, kPositions);
  Requests(decoder, {&first, &second}).ExpectSameBitsInAnyCompany();
}

// With weights as they are stored or quantized, and as `generate` holds them.
void ExpectSameBitsOf(const fs::path& model, const Precision& precision,
                      const std::vector<const LoraAdapter*>& adapters = {}) {
  const DecoderConfig config = LoadDecoderConfig(model);
  Context context(2);
  for (const WeightUse use : {WeightUse::kTraining, WeightUse::kGeneration}) {
    const auto backend = MakeCpuBackend(context, precision);
    LoadOptions load;
    load.use = use;
    const DecoderWeights weights = LoadWeights(context, *backend, model, config, load);
    const Decoder decoder(*backend, config, weights, precision, kPositions);
    Requests(decoder, adapters).ExpectSameBitsInAnyCompany();
  }
}

class EngineOfGolden : public testing::TestWithParam<std::string> {
 protected:
  static void ExpectSameBits(const fs::path& model) {
    for (const Precision& precision : kPrecisions) ExpectSameBitsOf(model, precision);
  }
};

std::string NameOfModel(const testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

TEST_P(EngineOfGolden, SameBitsInAnyCompany) { ExpectSameBits(kGoldenDir / GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, EngineOfGolden, testing::ValuesIn(kGoldenModels), NameOfModel);

class EngineOfGguf : public EngineOfGolden {};

TEST_P(EngineOfGguf, SameBitsInAnyCompany) {
  const fs::path model = SharedFolder() / "golden" / "gguf" / "models" / (GetParam() + ".gguf");
  if (!fs::exists(model)) GTEST_SKIP() << "no " << model;
  ExpectSameBits(model);
}

INSTANTIATE_TEST_SUITE_P(All, EngineOfGguf,
                         testing::Values("llama-q4_k_m", "qwen3-iq4_xs", "mixtral-q3_k_m",
                                         "gemma3-q5_k_m", "lfm3-q4_k", "spark2_5-q8_0"),
                         NameOfModel);

class EngineOfKernels : public testing::TestWithParam<SimdKernels> {
 protected:
  EngineOfKernels() { SetSimdKernels(GetParam()); }
  ~EngineOfKernels() override { SetSimdTarget(BestSimdTarget()); }
};

TEST_P(EngineOfKernels, SameBitsInInt8) {
  const fs::path model = kGoldenDir / "llama-tiny";
  const DecoderConfig config = LoadDecoderConfig(model);
  LoraAdapter first = RandomAdapter(config, 2, DType::kF32, 5);
  first.Pack(kInt8.activation);
  const LoraAdapter second = RandomAdapter(config, 5, DType::kF32, 6);
  ExpectSameBitsOf(model, kInt8, {&first, &second});
}

INSTANTIATE_TEST_SUITE_P(All, EngineOfKernels, testing::ValuesIn(testing_util::AllSimdKernels()),
                         [](const auto& test) { return testing_util::NameOf(test.param); });

class EngineRun : public testing::Test {
 protected:
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
  const std::vector<ScoredToken> scored = ScoresOf(first(request));
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

// By the first of those that share it. A prompt with the same tokens is another one.
TEST_F(EngineRun, ASharedPromptIsScoredOnce) {
  for (const std::int64_t length : {100, 5}) {
    EngineRequest request{.prompt = std::vector<std::int32_t>(length, 2)};
    request.options.max_new_tokens = 2;
    request.wants_prompt_logprobs = true;
    EngineRequest other = request;
    other.prompt = std::vector<std::int32_t>(length, 2);
    EngineRequest more = request;
    more.top_logprobs = 1;
    for (const EngineRequest& asked : {request, request, request, other, more}) {
      engine_.Submit(asked);
    }
    std::vector<EngineToken> firsts;
    std::int64_t cached = 0;
    while (!engine_.is_idle()) {
      for (EngineToken& token : engine_.Step()) {
        cached += token.cached;
        if (token.prompt != nullptr) firsts.push_back(std::move(token));
      }
    }
    ASSERT_EQ(firsts.size(), 5u);
    std::ranges::sort(firsts, {}, &EngineToken::request);
    EXPECT_EQ(std::ssize(*firsts[0].prompt), length - 1);
    EXPECT_EQ(firsts[1].prompt, firsts[0].prompt);
    EXPECT_EQ(firsts[2].prompt, firsts[0].prompt);
    EXPECT_NE(firsts[3].prompt, firsts[0].prompt);
    EXPECT_EQ(firsts[3].prompt->back().token, firsts[0].prompt->back().token);
    EXPECT_EQ(firsts[4].prompt->back().top.size(), 1u);
    // What waits for the scores reads what is kept, where the prompt is not short.
    EXPECT_EQ(cached, length > kShortPrompt ? 2 * (length - 1) : 0);
  }
}

// Who waits for the scores of another takes them itself where that one is gone.
TEST_F(EngineRun, ScoresOfACancelledRequestAreTakenByTheNext) {
  EngineRequest request{.prompt = std::vector<std::int32_t>(100, 2)};
  request.options.max_new_tokens = 1;
  request.wants_prompt_logprobs = true;
  const RequestId first = engine_.Submit(request);
  engine_.Submit(request);
  engine_.Step();
  engine_.Cancel(first);
  std::vector<EngineToken> tokens;
  while (tokens.empty()) tokens = engine_.Step();
  EXPECT_EQ(std::ssize(ScoresOf(tokens.front())), 99);
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
