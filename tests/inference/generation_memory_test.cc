// Buffers of generation are kept from text to text, and the values that a text leaves there change
// no other.
#include "inference/generation_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend_decorator.h"
#include "backend/context_on.h"
#include "model/golden.h"
#include "pass/random_decoder.h"
#include "pass/slot_pass.h"
#include "qlora/model.h"

namespace qlora {
namespace {

constexpr Precision kFloat{DType::kF32, DType::kF32};

// The memory of the host, with a count of what is taken from it.
class CountingMemory final : public Memory {
 public:
  std::byte* Allocate(std::size_t bytes) override {
    ++allocations_;
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return HostMemory().Allocate(bytes);
  }
  void Free(std::byte* data, std::size_t bytes) noexcept override {
    held_ -= bytes;
    HostMemory().Free(data, bytes);
  }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    HostMemory().Upload(host, data, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    HostMemory().Download(data, host, bytes);
  }
  void Zero(void* data, std::size_t bytes) override { HostMemory().Zero(data, bytes); }
  std::size_t Available() const override { return HostMemory().Available(); }

  int allocations() const { return allocations_; }
  std::size_t held() const { return held_; }
  std::size_t peak() const { return peak_; }

 private:
  int allocations_ = 0;
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
};

class CountingBackend final : public BackendDecorator {
 public:
  CountingBackend(std::unique_ptr<Backend> cpu, Memory& memory)
      : BackendDecorator(*cpu), cpu_(std::move(cpu)), memory_(memory) {}
  Memory& memory() const override { return memory_; }

 private:
  std::unique_ptr<Backend> cpu_;
  Memory& memory_;
};

// The logits of the last of `ids`, behind `first` tokens; rows: of a pass, at most.
std::vector<float> Read(GenerationBuffers& buffers, std::span<const std::int32_t> ids,
                        std::int64_t first, std::int64_t rows) {
  const std::int64_t length = first + std::ssize(ids);
  std::vector<float> logits;
  for (std::int64_t begin = 0; begin < std::ssize(ids); begin += rows) {
    const std::int64_t count = std::min(rows, std::ssize(ids) - begin);
    const SlotRows next = {.first = first + begin,
                           .ids = ids.subspan(begin, count),
                           .length = length,
                           .logit_rows = begin + count == std::ssize(ids) ? 1 : 0};
    RunSlots(buffers.decoder, {&next, 1}, SumOrder::kMany, buffers.pool.pool(), buffers.passes,
             [&](std::int64_t, std::int64_t, std::span<const float> row) {
               logits.assign(row.begin(), row.end());
             });
  }
  return logits;
}

class GenerationMemoryTest : public testing::Test {
 protected:
  GenerationMemory NewMemory() { return {backend_, config_, weights_.get(), kFloat, {}}; }

  // The logits after the prompt and after each of the tokens that follow.
  std::vector<std::vector<float>> Logits(GenerationBuffers& buffers, std::int64_t rows) const {
    const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
    std::vector<std::vector<float>> logits = {Read(buffers, std::span(ids).first(5), 0, rows)};
    for (std::int64_t n = 5; n < std::ssize(ids); ++n) {
      logits.push_back(Read(buffers, std::span(ids).subspan(n, 1), n, rows));
    }
    return logits;
  }

  const DecoderConfig config_ = TinyConfig();
  const RandomWeights weights_{config_, DType::kF32, 3, true};
  Context context_{2};
  CountingMemory counts_;
  CountingBackend backend_{MakeCpuBackend(context_, DType::kF32), counts_};
};

TEST_F(GenerationMemoryTest, ATextThatFitsAllocatesNothing) {
  GenerationMemory memory = NewMemory();
  memory.Keep(memory.Take({5, 20}));
  const int allocations = counts_.allocations();
  for (const auto& [rows, positions] : std::vector<std::pair<int, int>>{{5, 20}, {3, 20}, {5, 9}}) {
    auto buffers = memory.Take({rows, positions});
    Logits(*buffers, rows);
    memory.Keep(std::move(buffers));
  }
  EXPECT_EQ(counts_.allocations(), allocations);
  memory.Free();
  EXPECT_EQ(counts_.held(), 0u);
}

TEST_F(GenerationMemoryTest, NoMoreIsHeldThanOneTextNeeds) {
  std::vector<std::size_t> needs;
  const std::vector<std::pair<int, int>> sizes = {{5, 10}, {2, 40}, {7, 12}, {7, 60}};
  for (const auto& [rows, positions] : sizes) {
    GenerationMemory memory = NewMemory();
    memory.Keep(memory.Take({rows, positions}));
    needs.push_back(counts_.held());
  }
  CountingMemory counts;
  CountingBackend backend(MakeCpuBackend(context_, DType::kF32), counts);
  GenerationMemory memory(backend, config_, weights_.get(), kFloat, {});
  for (const auto& [rows, positions] : sizes) memory.Keep(memory.Take({rows, positions}));
  EXPECT_EQ(counts.held(), needs.back());
  EXPECT_EQ(counts.peak(), *std::max_element(needs.begin(), needs.end()));
}

std::vector<MatrixView> MatricesOf(const LayerState& state) {
  if (const auto* attention = std::get_if<AttentionMixer::State>(&state)) {
    return {attention->k, attention->v};
  }
  if (const auto* rule = std::get_if<DeltaRuleMixer::State>(&state)) {
    return {rule->window, rule->delta};
  }
  return {std::get<ShortConvMixer::State>(state).window};
}

// As after texts whose values were not finite.
TEST_F(GenerationMemoryTest, ValuesOfEarlierTextsChangeNothing) {
  std::vector<DecoderConfig> configs = {TinyGemma4(false), TinyGemma4(true)};
  for (const Mixer mixer : {Mixer::kAttention, Mixer::kDeltaRule, Mixer::kShortConv}) {
    DecoderConfig& config = configs.emplace_back(TinyConfig());
    config.layers[0].mixer = mixer;
    config.conv_taps = 3;
    config.delta_rule = {.heads = 4, .key_heads = 2, .key_dim = 4, .value_dim = 8};
  }
  for (const DecoderConfig& config : configs) {
    const RandomWeights weights(config, DType::kF32, 3);
    GenerationMemory memory(backend_, config, weights.get(), kFloat, {});
    const std::unique_ptr<GenerationBuffers> fresh = memory.Take({5, 8});
    const std::unique_ptr<GenerationBuffers> used = memory.Take({9, 30, 2});
    EXPECT_NE(fresh, used) << "two texts at a time have their own";
    std::memset(used->activations.data(), 0xff, used->activations.bytes());
    for (const LayerState& layer : used->pool.pool().layers) {
      for (const MatrixView& m : MatricesOf(layer)) {
        if (!m.empty()) std::memset(m.data, 0xff, BytesOf(m.dtype, m.rows * m.cols));
      }
    }
    EXPECT_EQ(Logits(*used, 5), Logits(*fresh, 5));
  }
}

// Rows of the table of per-layer embeddings are read part by part.
TEST_F(GenerationMemoryTest, TokensInPartsOrAtOnceAreTheSameText) {
  for (const bool shared : {false, true}) {
    const DecoderConfig config = TinyGemma4(shared);
    const RandomWeights weights(config, DType::kF32, 3);
    const std::unique_ptr<Backend> host = MakeCpuBackend(context_, DType::kF32);
    std::vector<std::int32_t> ids;
    for (std::int32_t n = 0; n < 150; ++n) ids.push_back(n * n % 23);
    std::vector<float> at_once;
    for (Backend* backend : {host.get(), static_cast<Backend*>(&backend_)}) {
      GenerationMemory memory(*backend, config, weights.get(), kFloat, {});
      for (const std::int64_t rows : {150, 70, 7, 1}) {
        const auto buffers = memory.Take({rows, 160});
        const std::vector<float> logits = Read(*buffers, ids, 0, rows);
        if (at_once.empty()) at_once = logits;
        EXPECT_EQ(logits, at_once) << rows << " rows";
      }
    }
    // And of a pass without a state.
    const Decoder decoder(*host, config, weights.get(), kFloat, 160);
    std::vector<std::int32_t> targets = ids;
    targets.push_back(5);
    const Batch batch = MakeBatch(std::vector<Sample>{{targets, targets}});
    host->Reserve(LimitsOf(config, {}, batch.rows(), batch.rows()));
    Runner runner(decoder, nullptr, batch, Recompute::kNone, batch.rows());
    const PassInputs inputs = runner.Prepare();
    Forward(decoder, inputs, runner.activations());
    std::vector<double> logprobs;
    qlora::Loss(decoder, inputs, runner.activations(), &logprobs);
    double sum = 0;
    for (const float logit : at_once) sum += std::exp(double{logit});
    EXPECT_NEAR(logprobs.back(), at_once[5] - std::log(sum), 5e-5);
  }
}

TEST_F(GenerationMemoryTest, AModelAllocatesForItsFirstTextAlone) {
  const auto make = [this](Context& context, const Compute& compute) {
    return std::make_unique<CountingBackend>(MakeCpuBackend(context, compute), counts_);
  };
  ContextOn context(BackendsBy(make), 2);
  ModelOptions options;
  options.model_name_or_path = kGoldenDir / "llama-tiny";
  GenerateOptions generate;
  generate.max_new_tokens = 8;
  const std::string other = Model::Load(context, options).Generate("Once", generate).text;

  Model model = Model::Load(context, options);
  const std::string text = model.Generate("Once upon a time", generate).text;
  const int allocations = counts_.allocations();
  EXPECT_EQ(model.Generate("Once", generate).text, other);
  EXPECT_EQ(model.Generate("Once upon a time", generate).text, text);
  EXPECT_EQ(counts_.allocations(), allocations);
}

}  // namespace
}  // namespace qlora
