// Google Benchmark of single ops: the cost of one call of the CPU backend.
//   build/release/bin/ops_benchmark --benchmark_filter=Linear
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace qlora {
namespace {

// A micro-batch of one short sequence, a layer of TinyLlama's width.
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kFeatures = 2048;

// A layer of Qwen3.5 4B.
constexpr DeltaRuleShape kDeltaRule = {
    .heads = 32, .key_heads = 16, .key_dim = 128, .value_dim = 128};

std::vector<float> Values(std::int64_t count, std::uint64_t place) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Values of both signs, so that sums stay small.
    values[i] = RandomUniform(MakeKey(1, RandomPlace::kTest, place), i) - 0.5f;
  }
  return values;
}

struct Setup {
  explicit Setup(DType compute) : backend(MakeCpuBackend(context, compute)) {
    backend->Reserve({.rows = kRows,
                      .features = 3 * kFeatures,
                      .vocab_rows = kRows,
                      .vocab = kFeatures,
                      .lora_rank = 64,
                      .heads = 32,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .gradient_rows = kRows,
                      .gradient_length = kRows,
                      .delta_rule = kDeltaRule});
  }
  Context context;
  std::unique_ptr<Backend> backend;
};

// products: multiply-adds of one call.
void CountProducts(benchmark::State& state, double products) {
  state.counters["FLOP/s"] = benchmark::Counter(
      2 * products, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void BM_LinearNf4(benchmark::State& state, DType compute, std::int64_t rows) {
  Setup setup(compute);
  const std::vector<float> w = Values(kFeatures * kFeatures, 1);
  const QuantizedMatrix quantized =
      Quantize(setup.context, MakeView(w.data(), kFeatures, kFeatures));
  const std::vector<float> x = Values(rows * kFeatures, 2);
  std::vector<float> y(x.size());
  const LinearView linear{quantized.view(), {}, {}};
  const LinearOutput out{MakeView(y.data(), rows, kFeatures), {}};
  for (auto _ : state) {
    setup.backend->Run(
        ops::Linear{{&linear, 1}, MakeView(x.data(), rows, kFeatures), {&out, 1}, Store::kSet});
  }
  CountProducts(state, static_cast<double>(rows * kFeatures * kFeatures));
}
// Real time: the library does not count the threads of the context.
BENCHMARK_CAPTURE(BM_LinearNf4, bf16_512, DType::kBF16, kRows)->UseRealTime();
BENCHMARK_CAPTURE(BM_LinearNf4, bf16_1, DType::kBF16, 1)->UseRealTime();
BENCHMARK_CAPTURE(BM_LinearNf4, f32_512, DType::kF32, kRows)->UseRealTime();

// The limit of other products in float32.
void BM_LinearDense(benchmark::State& state) {
  Setup setup(DType::kF32);
  const std::vector<float> w = Values(kFeatures * kFeatures, 1);
  const std::vector<float> x = Values(kRows * kFeatures, 2);
  std::vector<float> y(x.size());
  const LinearView linear{MakeView(w.data(), kFeatures, kFeatures), {}, {}};
  const LinearOutput out{MakeView(y.data(), kRows, kFeatures), {}};
  for (auto _ : state) {
    setup.backend->Run(
        ops::Linear{{&linear, 1}, MakeView(x.data(), kRows, kFeatures), {&out, 1}, Store::kSet});
  }
  CountProducts(state, static_cast<double>(kRows * kFeatures * kFeatures));
}
BENCHMARK(BM_LinearDense)->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  // Norms do not depend on the type of products.
  Setup setup(DType::kF32);
  const std::vector<float> x = Values(kRows * kFeatures, 3);
  const std::vector<float> w = Values(kFeatures, 4);
  std::vector<float> y(x.size());
  std::vector<float> rstd(kRows);
  for (auto _ : state) {
    setup.backend->Run(
        ops::RmsNorm{MakeView(x.data(), kRows, kFeatures), MakeView(w.data(), 1, kFeatures), 1e-5f,
                     MakeView(y.data(), kRows, kFeatures), MakeView(rstd.data(), 1, kRows)});
  }
}
BENCHMARK(BM_RmsNorm)->UseRealTime();

void BM_Attention(benchmark::State& state) {
  Setup setup(DType::kF32);
  // Heads, key/value heads, K, scale 1 / sqrt(64), no cap, no window.
  const AttentionShape shape{32, 4, 64, 0.125f, 0, 0};
  const std::vector<float> q = Values(kRows * 32 * 64, 5);
  const std::vector<float> k = Values(kRows * 4 * 64, 6);
  const std::vector<float> v = Values(kRows * 4 * 64, 7);
  std::vector<float> o(q.size());
  std::vector<float> lse(kRows * 32);
  const AttentionSpan span{0, kRows, 0, kRows};
  for (auto _ : state) {
    setup.backend->Run(ops::Attention{shape,
                                      {&span, 1},
                                      MakeView(q.data(), kRows, 32 * 64),
                                      MakeView(k.data(), kRows, 4 * 64),
                                      MakeView(v.data(), kRows, 4 * 64),
                                      MakeView(o.data(), kRows, 32 * 64),
                                      MakeView(lse.data(), kRows, 32)});
  }
}
BENCHMARK(BM_Attention)->UseRealTime();

// The operands of the delta rule over one sequence.
struct DeltaRule {
  static constexpr std::int64_t kKeys = kDeltaRule.key_heads * kDeltaRule.key_dim;
  static constexpr std::int64_t kValues = kDeltaRule.heads * kDeltaRule.value_dim;

  static auto View(const std::vector<float>& m) {
    return MakeView(m.data(), kRows, std::ssize(m) / kRows);
  }
  static auto View(std::vector<float>& m) {
    return MakeView(m.data(), kRows, std::ssize(m) / kRows);
  }

  SequenceSpan span = {0, kRows, 0};
  std::vector<float> q = Values(kRows * kKeys, 8), k = Values(kRows * kKeys, 9);
  std::vector<float> v = Values(kRows * kValues, 10), d_o = Values(kRows * kValues, 11);
  std::vector<float> a = Values(kRows * kDeltaRule.heads, 12);
  std::vector<float> b = Values(kRows * kDeltaRule.heads, 13);
  std::vector<float> rate = std::vector<float>(kDeltaRule.heads, -0.1f);
  std::vector<float> dt_bias = std::vector<float>(kDeltaRule.heads, 0.5f);
  ConstMatrixView rates = MakeView(std::as_const(rate).data(), 1, kDeltaRule.heads);
  ConstMatrixView biases = MakeView(std::as_const(dt_bias).data(), 1, kDeltaRule.heads);
};

// Multiply-adds of a token and head, triangles of chunks counted half.
constexpr double kChunk = 64;
constexpr double kState = kDeltaRule.key_dim * kDeltaRule.value_dim;
constexpr double kRow = kDeltaRule.key_dim;
constexpr double kTokens = kRows * kDeltaRule.heads;

void BM_GatedDeltaRule(benchmark::State& state) {
  Setup setup(DType::kF32);
  const DeltaRule in;
  std::vector<float> o(in.v.size());
  for (auto _ : state) {
    setup.backend->Run(ops::GatedDeltaRule{kDeltaRule,
                                           {&in.span, 1},
                                           in.View(in.q),
                                           in.View(in.k),
                                           in.View(in.v),
                                           in.View(in.a),
                                           in.View(in.b),
                                           in.rates,
                                           in.biases,
                                           in.View(o)});
  }
  CountProducts(state, kTokens * (3 * kState + 2 * kChunk * kRow));
}
BENCHMARK(BM_GatedDeltaRule)->UseRealTime();

// With the states before all chunks, which are found again.
void BM_GatedDeltaRuleBackward(benchmark::State& state) {
  Setup setup(DType::kF32);
  const DeltaRule in;
  std::vector<float> dq = in.q, dk = in.k, dv = in.v, da = in.a, db = in.b;
  for (auto _ : state) {
    setup.backend->Run(ops::GatedDeltaRuleBackward{kDeltaRule,
                                                   {&in.span, 1},
                                                   in.View(in.d_o),
                                                   in.View(in.q),
                                                   in.View(in.k),
                                                   in.View(in.v),
                                                   in.View(in.a),
                                                   in.View(in.b),
                                                   in.rates,
                                                   in.biases,
                                                   in.View(dq),
                                                   in.View(dk),
                                                   in.View(dv),
                                                   in.View(da),
                                                   in.View(db)});
  }
  CountProducts(state, kTokens * (10 * kState + 6.5 * kChunk * kRow));
}
BENCHMARK(BM_GatedDeltaRuleBackward)->UseRealTime();

// One token, as in decoding: each state is read and written once.
void BM_GatedDeltaRuleToken(benchmark::State& state) {
  Setup setup(DType::kF32);
  const DeltaRule in;
  const SequenceSpan span = {0, 1, 0};
  std::vector<float> o(DeltaRule::kValues);
  std::vector<float> states(kDeltaRule.heads * kDeltaRule.key_dim * kDeltaRule.value_dim);
  const auto first = [](const std::vector<float>& m) { return Rows(DeltaRule::View(m), 0, 1); };
  for (auto _ : state) {
    setup.backend->Run(ops::GatedDeltaRule{
        kDeltaRule,
        {&span, 1},
        first(in.q),
        first(in.k),
        first(in.v),
        first(in.a),
        first(in.b),
        in.rates,
        in.biases,
        MakeView(o.data(), 1, DeltaRule::kValues),
        MakeView(states.data(), std::ssize(states) / kDeltaRule.value_dim, kDeltaRule.value_dim)});
  }
  state.SetBytesProcessed(state.iterations() * 2 * std::ssize(states) * 4);
}
BENCHMARK(BM_GatedDeltaRuleToken)->UseRealTime();

void BM_CausalConv(benchmark::State& state, bool backward) {
  Setup setup(DType::kF32);
  constexpr std::int64_t kChannels = 2 * DeltaRule::kKeys + DeltaRule::kValues;
  constexpr std::int64_t kTaps = 4;
  const SequenceSpan span = {0, kRows, 0};
  const std::vector<float> x = Values(kRows * kChannels, 14), dy = Values(kRows * kChannels, 15);
  const std::vector<float> w = Values(kChannels * kTaps, 16);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    if (backward) {
      setup.backend->Run(ops::CausalConvBackward{Activation::kSilu,
                                                 {&span, 1},
                                                 DeltaRule::View(dy),
                                                 DeltaRule::View(x),
                                                 MakeView(w.data(), kChannels, kTaps),
                                                 {},
                                                 DeltaRule::View(y)});
    } else {
      setup.backend->Run(ops::CausalConv{Activation::kSilu,
                                         {&span, 1},
                                         DeltaRule::View(x),
                                         MakeView(w.data(), kChannels, kTaps),
                                         {},
                                         DeltaRule::View(y)});
    }
  }
  state.SetBytesProcessed(state.iterations() * (backward ? 3 : 2) * std::ssize(x) * 4);
}
BENCHMARK_CAPTURE(BM_CausalConv, forward, false)->UseRealTime();
BENCHMARK_CAPTURE(BM_CausalConv, backward, true)->UseRealTime();

}  // namespace
}  // namespace qlora

BENCHMARK_MAIN();
