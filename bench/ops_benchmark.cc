// Google Benchmark of single ops: the cost of one call of the CPU backend.
//   build/release/bin/ops_benchmark --benchmark_filter=Linear
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace qlora {
namespace {

// A micro-batch of one short sequence, a layer of TinyLlama's width.
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kFeatures = 2048;

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
                      .head_dim = 64});
  }
  Context context;
  std::unique_ptr<Backend> backend;
};

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
  // A product and a sum for each weight and row.
  state.counters["FLOP/s"] = benchmark::Counter(
      2.0 * static_cast<double>(rows * kFeatures * kFeatures),
      benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}
// Real time: the library does not count the threads of the context.
BENCHMARK_CAPTURE(BM_LinearNf4, bf16_512, DType::kBF16, kRows)->UseRealTime();
BENCHMARK_CAPTURE(BM_LinearNf4, bf16_1, DType::kBF16, 1)->UseRealTime();
BENCHMARK_CAPTURE(BM_LinearNf4, f32_512, DType::kF32, kRows)->UseRealTime();

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

}  // namespace
}  // namespace qlora

BENCHMARK_MAIN();
