// A request has the same bits whoever else is in the passes, and however its prompt is cut.
#include "inference/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "model/golden.h"
#include "pass/decoder_families.h"
#include "pass/dora.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// The tokens of a request, with their log-probabilities.
using Line = std::vector<std::pair<std::int32_t, double>>;

struct Sizes {
  std::int64_t slots = 1;
  std::int64_t rows = kMostRowByRow;
};

constexpr std::int64_t kPositions = 60;

// A decoder with adapters, and requests for them.
class Requests {
 public:
  Requests(const Decoder& decoder, std::vector<const LoraAdapter*> adapters)
      : decoder_(decoder), adapters_(std::move(adapters)) {
    const auto vocab = static_cast<std::uint64_t>(decoder.config().vocab_size);
    const std::vector<std::int64_t> lengths = {1, 40, 7, 23, 12, 5};
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      EngineRequest& request = all_.emplace_back();
      for (std::int64_t n = 0; n < lengths[r]; ++n) {
        const RandomKey key = MakeKey(5, RandomPlace::kTest, r);
        request.prompt.push_back(
            static_cast<std::int32_t>(RandomBelow(key, static_cast<std::uint64_t>(n), vocab)));
      }
      // The base, then each adapter, in turn.
      const std::size_t which = r % (adapters_.size() + 1);
      request.adapter = which == 0 ? nullptr : adapters_[which - 1];
      request.wants_logprobs = true;
      request.options.max_new_tokens = 4 + static_cast<std::int64_t>(r);
      request.options.do_sample = r % 2 == 1;
      request.options.temperature = 0.8;
      request.options.seed = static_cast<std::int64_t>(r);
    }
  }

  std::vector<Line> Write(const std::vector<EngineRequest>& requests, const Sizes& sizes) const {
    Arena memory = ReserveSlots(decoder_, adapters_, sizes.rows);
    EvalMemory passes(decoder_, adapters_, memory);
    const PoolMemory pool(decoder_.backend().memory(), decoder_.config(), decoder_.precision(),
                          sizes.slots, kPositions);
    Engine engine(decoder_, passes, pool.pool(), sizes.rows);
    std::map<RequestId, Line> lines;
    for (const EngineRequest& request : requests) lines[engine.Submit(request)];
    while (!engine.is_idle()) {
      for (const EngineToken& token : engine.Step()) {
        lines[token.request].emplace_back(token.token, token.logprob);
      }
    }
    std::vector<Line> all;
    for (auto& [id, line] : lines) all.push_back(std::move(line));
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
      EXPECT_EQ(std::ssize(alone[r]), all_[r].options.max_new_tokens);
    }
    for (const Sizes& sizes : {Sizes{6, 96}, Sizes{6, 13}, Sizes{2, 7}, Sizes{3, 1}}) {
      EXPECT_EQ(Write(all_, sizes), alone) << sizes.slots << " slots, " << sizes.rows << " rows";
    }
    // A text that is read again goes on to the same bits: a draw has another number then.
    EngineRequest again = all_[4];
    ASSERT_FALSE(again.options.do_sample);
    for (std::size_t n = 0; n + 1 < alone[4].size(); ++n) {
      again.prompt.push_back(alone[4][n].first);
    }
    again.options.max_new_tokens = 1;
    EXPECT_EQ(Write({again}, {1, 5}).front().front(), alone[4].back());
  }

 private:
  const Decoder& decoder_;
  std::vector<const LoraAdapter*> adapters_;
  std::vector<EngineRequest> all_;
};

class EngineTest : public testing::TestWithParam<TestedFamily> {
 protected:
  static void ExpectSameBits(const DecoderConfig& config, Backend& backend, DType activation,
                             bool quantize) {
    const RandomWeights weights(config, DType::kF32, 3, quantize);
    const LoraAdapter first = RandomAdapter(config, 2, DType::kF32, 5);
    const LoraAdapter second = RandomAdapter(config, 5, DType::kF32, 6);
    const Precision precision{activation, DType::kF32};
    const Decoder decoder(backend, config, weights.get(), precision, kPositions);
    Requests(decoder, {&first, &second}).ExpectSameBitsInAnyCompany();
  }
};

TEST_P(EngineTest, SameBitsInAnyCompany) {
  Context context(2);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto backend = MakeCpuBackend(context, compute);
    for (const bool quantize : {false, true}) {
      SCOPED_TRACE(quantize);
      ExpectSameBits(GetParam().config, *backend, compute, quantize);
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

class EngineOfGolden : public testing::TestWithParam<std::string> {
 protected:
  // With weights as they are stored or quantized, and as `generate` holds them.
  static void ExpectSameBits(const fs::path& model) {
    const DecoderConfig config = LoadDecoderConfig(model);
    Context context(2);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const WeightUse use : {WeightUse::kTraining, WeightUse::kGeneration}) {
        const auto backend = MakeCpuBackend(context, compute);
        LoadOptions load;
        load.use = use;
        const DecoderWeights weights = LoadWeights(context, *backend, model, config, load);
        const Decoder decoder(*backend, config, weights, {compute, DType::kF32}, kPositions);
        Requests(decoder, {}).ExpectSameBitsInAnyCompany();
      }
    }
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

class EngineRun : public testing::Test {
 protected:
  const DecoderConfig config_ = TinyConfig();
  const RandomWeights weights_{config_, DType::kF32, 3};
  Context context_{1};
  const std::unique_ptr<Backend> backend_ = MakeCpuBackend(context_, DType::kF32);
  const Decoder decoder_{
      *backend_, config_, weights_.get(), {DType::kF32, DType::kF32}, kPositions};
  Arena memory_ = ReserveSlots(decoder_, {}, 8);
  EvalMemory passes_{decoder_, {}, memory_};
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

// Prompts take the rows that sequences leave, however long they are.
TEST_F(EngineRun, APromptKeepsNobodyWaiting) {
  EngineRequest request{.prompt = {1}};
  request.options.max_new_tokens = 20;
  const RequestId first = engine_.Submit(request);
  engine_.Step();
  request.prompt.assign(40, 2);
  const RequestId second = engine_.Submit(request);
  for (int step = 0; step < 5; ++step) {  // 40 tokens, 7 rows at a time
    const std::vector<EngineToken> tokens = engine_.Step();
    ASSERT_EQ(tokens.size(), 1u);
    EXPECT_EQ(tokens[0].request, first);
  }
  EXPECT_EQ(engine_.Step().back().request, second);
}

TEST_F(EngineRun, RefusesWhatNoSlotHolds) {
  EngineRequest request;
  EXPECT_THROW(engine_.Submit(request), Error);
  request.prompt.assign(kPositions, 1);
  request.options.max_new_tokens = 2;
  EXPECT_THROW(engine_.Submit(request), Error);
  request.options.max_new_tokens = 1;
  request.options.temperature = -1;
  EXPECT_THROW(engine_.Submit(request), Error);
  EXPECT_TRUE(engine_.is_idle());
}

}  // namespace
}  // namespace qlora
