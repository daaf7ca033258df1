// A request has the same bits whoever else is in the passes, and however its prompt is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/simd_kernels.h"
#include "inference/engine.h"
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
          for (const ScoredToken& scored : token.prompt) {
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

}  // namespace
}  // namespace qlora
