// What each sequence of a batch reads: its own adapter, its own rotary table.
#include "pass/pass_inputs.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>

#include "backend/backend_decorator.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"
#include "pass/random_decoder.h"
#include "pass/slot_pass.h"
#include "qlora/error.h"

namespace qlora {
namespace {

constexpr Precision kFloat{DType::kF32, DType::kF32};

// log p(target) of every supervised row.
std::vector<double> LogProbs(const Decoder& decoder, const Batch& batch,
                             const std::vector<AdapterRows>& rows, const Adapters& adapters) {
  Arena memory = ReserveEvaluation(decoder, adapters, batch.rows());
  EvalMemory passes(decoder, adapters, memory);
  Activations& activations = passes.ForRows(batch.rows());
  const PassInputs inputs = PrepareInputs(decoder, batch, {rows}, activations);
  Forward(decoder, inputs, activations);
  std::vector<double> logprobs;
  Loss(decoder, inputs, activations, &logprobs);
  return logprobs;
}

Batch SequenceOf(const Batch& batch, std::int64_t s) {
  const std::int64_t begin = batch.sequence_begin[s];
  const std::int64_t end = batch.sequence_begin[s + 1];
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin() + begin, all.begin() + end);
  };
  return {part(batch.ids), part(batch.targets), part(batch.positions), {0, end - begin}};
}

// tolerance: of products over few rows and over many, which are added in different orders.
void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance);
}

void Append(const std::vector<double>& values, std::vector<double>& all) {
  all.insert(all.end(), values.begin(), values.end());
}

// Adapters of other ranks, dropout, DoRA and whole modules share one pass.
TEST(PassInputsTest, EachRangeOfRowsHasItsAdapter) {
  const DecoderConfig config = TinyConfig();
  Context context(2);
  for (const bool reference : {true, false}) {
    const auto backend = reference ? MakeReferenceBackend() : MakeCpuBackend(context, DType::kF32);
    const RandomWeights weights(config, DType::kF32, 3, true);
    AdapterConfig whole;
    whole.modules_to_save = {"embed_tokens", "lm_head"};
    AdapterConfig dora;
    dora.use_dora = true;
    LoraAdapter a = RandomAdapter(config, 2, DType::kF32, 5);
    LoraAdapter b = RandomAdapter(config, 4, DType::kF32, 6, 0, whole);
    LoraAdapter c = RandomAdapter(config, 3, DType::kF32, 7, 0, dora);
    b.InitializeModules(weights.get());
    for (const TrainedModule& module : b.modules()) module.weight.Row<float>(1)[0] += 1;
    backend->Reserve(LimitsOf(config, {&a, &b, &c}, 1, 1));
    RefreshNorms(*backend, weights.get(), c);

    const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
    const Batch batch = RandomBatch(config, {5, 3, 7, 4, 6}, 9);
    const LoraAdapter* of_sequence[] = {&a, nullptr, &b, &c, &a};
    std::vector<AdapterRows> ranges;
    std::vector<double> separate;
    for (std::int64_t s = 0; s < batch.sequences(); ++s) {
      const Batch one = SequenceOf(batch, s);
      Append(LogProbs(decoder, one, ForAllRows(of_sequence[s], one.rows()),
                      AdaptersOf(of_sequence[s])),
             separate);
      if (of_sequence[s] == nullptr) continue;
      ranges.push_back({of_sequence[s], batch.sequence_begin[s], one.rows()});
    }
    ExpectNear(LogProbs(decoder, batch, ranges, {&a, &b, &c}), separate, reference ? 0 : 1e-4);
  }
}

// Ranges of rows whose adapters have a token embedding of their own read that, and all others the
// base's: each sequence has the log-probabilities that it has alone.
TEST(PassInputsTest, RowsReadTheEmbeddingOfTheirAdapter) {
  DecoderConfig config = TinyConfig();
  config.embed_scale = 1.5f;
  Context context(2);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  RandomWeights weights(config, DType::kF32, 3);
  AdapterConfig whole;
  whole.modules_to_save = {"embed_tokens", "lm_head"};
  LoraAdapter a = RandomAdapter(config, 2, DType::kF32, 5);
  LoraAdapter b = RandomAdapter(config, 4, DType::kF32, 6, 0, whole);
  b.InitializeModules(weights.get());
  for (const TrainedModule& module : b.modules()) module.weight.Row<float>(1)[0] += 1;

  const Decoder decoder(*backend, config, weights.get(), kFloat, 64);
  const Batch batch = RandomBatch(config, {5, 40, 7, 4}, 9);
  const LoraAdapter* of_sequence[] = {nullptr, &b, &a, &b};
  std::vector<AdapterRows> ranges;
  std::vector<double> separate;
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const Batch one = SequenceOf(batch, s);
    Append(
        LogProbs(decoder, one, ForAllRows(of_sequence[s], one.rows()), AdaptersOf(of_sequence[s])),
        separate);
    if (of_sequence[s] == nullptr) continue;
    ranges.push_back({of_sequence[s], batch.sequence_begin[s], one.rows()});
  }
  ExpectNear(LogProbs(decoder, batch, ranges, {&a, &b}), separate, 1e-4);
}

DecoderConfig LongropeConfig() {
  DecoderConfig config = TinyConfig();
  RopeConfig& rope = config.ropes[0];
  rope.type = RopeType::kLongrope;
  rope.original_max_position_embeddings = 6;
  rope.attention_factor = 1.2;
  rope.short_factor.assign(rope.rotary_dim / 2, 1.0);
  rope.long_factor.assign(rope.rotary_dim / 2, 4.0);
  return config;
}

// A sequence beyond the original context length uses the long factors; its neighbours do not.
TEST(PassInputsTest, LongropeIsChosenForEachSequence) {
  const DecoderConfig config = LongropeConfig();
  Context context(2);
  const auto backend = MakeCpuBackend(context, DType::kF32);
  const RandomWeights weights(config, DType::kF32, 3);
  const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
  const Batch batch = RandomBatch(config, {4, 12, 6, 7}, 9);
  std::vector<double> separate;
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    Append(LogProbs(decoder, SequenceOf(batch, s), {}, {}), separate);
  }
  ExpectNear(LogProbs(decoder, batch, {}, {}), separate, 1e-4);

  EXPECT_EQ(decoder.ropes().FirstRow(0, 6), 0);
  EXPECT_EQ(decoder.ropes().FirstRow(0, 7), 16);
  EXPECT_THROW(decoder.ropes().FirstRow(0, 17), Error);
}

// The logits of a pass, in order.
std::vector<std::vector<float>> LogitsOf(const Decoder& decoder, std::span<const SlotRows> slots,
                                         SumOrder order, const StatePool& pool,
                                         EvalMemory& passes) {
  std::vector<std::vector<float>> all;
  RunSlots(decoder, slots, order, pool, passes,
           [&](std::int64_t, std::int64_t, std::span<const float> logits) {
             all.emplace_back(logits.begin(), logits.end());
           });
  return all;
}

// The logits of the last token of sequences in slots that are read in parts of `part` tokens, each
// with the adapter of its number, or none.
std::vector<std::vector<float>> SlotLogits(const Decoder& decoder, const Adapters& adapters,
                                           std::int64_t length, std::int64_t part) {
  const auto slots = static_cast<std::int64_t>(adapters.size());
  Adapters present = adapters;
  std::erase(present, nullptr);
  Arena memory = ReserveSlots(decoder, present, slots * part);
  EvalMemory passes(decoder, present, memory);
  const PoolMemory pool(decoder.backend().memory(), decoder.config(), decoder.precision(), slots,
                        length);
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  std::vector<std::vector<float>> logits;
  for (std::int64_t begin = 0; begin < length; begin += part) {
    std::vector<SlotRows> rows;
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const std::int64_t count = std::min(part, length - begin);
      rows.push_back({.slot = slots - 1 - slot,
                      .first = begin,
                      .ids = std::span(ids).subspan(begin, count),
                      .length = length,
                      .adapter = adapters[slot],
                      .logit_rows = begin + count == length ? 1 : 0});
    }
    logits = LogitsOf(decoder, rows, SumOrder::kMany, pool.pool(), passes);
  }
  return logits;
}

// On the definitions: sequences in slots end in the same logits however they are read.
TEST(SlotPassTest, PartsEqualTheWhole) {
  std::vector<DecoderConfig> configs = {TinyConfig()};
  configs.push_back(TinyConfig());
  configs.back().fused_qkv = configs.back().fused_gate_up = true;
  configs.push_back(TinyConfig());
  configs.back().layers[1] = {.num_key_value_heads = 1, .head_dim = 8};
  for (const Mixer mixer : {Mixer::kDeltaRule, Mixer::kShortConv}) {
    DecoderConfig& config = configs.emplace_back(TinyConfig());
    config.layers[0] = {.rope = -1, .mixer = mixer};
    config.conv_taps = 3;
    config.delta_rule = {.heads = 4, .key_heads = 2, .key_dim = 3, .value_dim = 5};
  }
  for (const DecoderConfig& config : configs) {
    const auto backend = MakeReferenceBackend();
    const RandomWeights weights(config, DType::kF32, 3);
    const LoraAdapter adapter = RandomAdapter(config, 2, DType::kF32, 5);
    const LoraAdapter other = RandomAdapter(config, 3, DType::kF32, 6);
    const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
    const Adapters adapters = {&adapter, nullptr, &other};
    const std::vector<std::vector<float>> whole = SlotLogits(decoder, adapters, 10, 10);
    for (const std::int64_t part : {1, 2, 5}) {
      EXPECT_EQ(SlotLogits(decoder, adapters, 10, part), whole) << part;
    }
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      EXPECT_EQ(SlotLogits(decoder, {adapters[i]}, 10, 10).front(), whole[i]) << i;
    }
  }
}

// Counts the products of weights.
class CountingBackend final : public BackendDecorator {
 public:
  explicit CountingBackend(Backend& inner) : BackendDecorator(inner) {}
  int Take() { return std::exchange(products_, 0); }

 private:
  void DoRun(const Op& op) override {
    products_ += std::holds_alternative<ops::Linear>(op) ? 1 : 0;
    inner().Run(op);
  }
  int products_ = 0;
};

TEST(SlotPassTest, RowsOfFourAdaptersReadAWeightOnce) {
  const DecoderConfig config = TinyConfig();
  Context context(1);
  const auto cpu = MakeCpuBackend(context, DType::kF32);
  CountingBackend backend(*cpu);
  const RandomWeights weights(config, DType::kF32, 3);
  std::vector<LoraAdapter> adapters;
  for (int i = 0; i < 4; ++i) adapters.push_back(RandomAdapter(config, 2 + i, DType::kF32, 5));
  Adapters all;
  for (const LoraAdapter& adapter : adapters) all.push_back(&adapter);
  const Decoder decoder(backend, config, weights.get(), kFloat, 4);
  Arena memory = ReserveSlots(decoder, all, 16);
  EvalMemory passes(decoder, all, memory);
  const PoolMemory pool(backend.memory(), config, kFloat, 16, 4);
  const std::int32_t id = 7;
  int products[2];
  for (const bool several : {false, true}) {
    std::vector<SlotRows> rows;
    for (std::int64_t slot = 0; slot < 16; ++slot) {
      rows.push_back({.slot = slot,
                      .first = 0,
                      .ids = {&id, 1},
                      .length = 1,
                      .adapter = all[several ? slot / 4 : 0]});
    }
    EXPECT_EQ(LogitsOf(decoder, rows, SumOrder::kFew, pool.pool(), passes).size(), 16u);
    products[several] = backend.Take();
  }
  EXPECT_EQ(products[1], products[0]);
}

TEST(SlotPassTest, RefusesWhatThePoolLacks) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF32, 3);
  const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
  Arena memory = ReserveSlots(decoder, {}, 4);
  EvalMemory passes(decoder, {}, memory);
  const PoolMemory pool(backend->memory(), config, kFloat, 2, 5);
  const std::vector<std::int32_t> ids = {3, 1, 4};
  for (const auto& [slot, first] : std::vector<std::pair<int, int>>{{2, 0}, {-1, 0}, {0, 3}}) {
    const SlotRows rows = {.slot = slot, .first = first, .ids = ids, .length = 3};
    EXPECT_THROW(LogitsOf(decoder, {&rows, 1}, SumOrder::kFew, pool.pool(), passes), Error);
  }
}

TEST(PassInputsTest, WrongRangesAreRefused) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF32, 3);
  const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
  LoraAdapter adapter = RandomAdapter(config, 2, DType::kF32, 5);
  LoraAdapter other = RandomAdapter(config, 2, DType::kF32, 6);
  const Batch batch = RandomBatch(config, {4, 4}, 9);
  EXPECT_THROW(LogProbs(decoder, batch, {{&adapter, 0, 5}, {&other, 4, 4}}, {&adapter}), Error);
  EXPECT_THROW(LogProbs(decoder, batch, {{&adapter, 0, 9}}, {&adapter}), Error);
  Runner runner(decoder, &adapter, batch, Recompute::kNone);
  const PassInputs inputs = runner.Prepare({}, 1);
  Forward(decoder, inputs, runner.activations());
  EXPECT_THROW(LossAndGradient(decoder, inputs, runner.activations(), other), Error);
  EXPECT_THROW(LossAndGradient(decoder, runner.Prepare(), runner.activations(), adapter), Error);
}

// On the definitions, so that results are the same bits.
TEST(PassInputsTest, ExpertsTakeTheAdapterOfEachRow) {
  for (const bool has_bias : {false, true}) {
    DecoderConfig config = TinyConfig();
    config.moe = {4, 2, true};
    config.mlp_bias = has_bias;
    const auto backend = MakeReferenceBackend();
    const RandomWeights weights(config, DType::kF32, 3);
    const Decoder decoder(*backend, config, weights.get(), kFloat, 16);
    const LoraAdapter narrow = RandomAdapter(config, 2, DType::kF32, 5);
    const LoraAdapter wide = RandomAdapter(config, 3, DType::kF32, 6);
    const Batch batch = RandomBatch(config, {4, 5, 3}, 9);
    const Adapters of_sequence = {&wide, nullptr, &narrow};
    std::vector<double> separate;
    std::vector<AdapterRows> ranges;
    for (std::int64_t s = 0; s < batch.sequences(); ++s) {
      const Batch one = SequenceOf(batch, s);
      Append(LogProbs(decoder, one, ForAllRows(of_sequence[s], one.rows()), {&narrow, &wide}),
             separate);
      ranges.push_back({of_sequence[s], batch.sequence_begin[s], one.rows()});
    }
    EXPECT_EQ(LogProbs(decoder, batch, ranges, {&narrow, &wide}), separate);
  }
}

}  // namespace
}  // namespace qlora
