#include "bench/bench_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "backend/backend.h"
#include "base/arena.h"
#include "bench/bench_bandwidth.h"
#include "bench/bench_gemm_dense.h"
#include "bench/bench_peak.h"
#include "qlora/nf4.h"

namespace qlora::bench {
namespace {

// Products of fewer rows wait for memory when the weights come from there, as they do in use.
constexpr std::int64_t kManyRows = 128;
constexpr std::size_t kBeyondCaches = std::size_t{256} << 20;
// Work of one timing, so that short products are not lost in the clock.
constexpr double kFlopsPerTiming = 4e9;

// Pseudo-random values in [-1, 1).
void Fill(const MatrixView& m, std::uint64_t seed) {
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const auto index = static_cast<std::uint64_t>(r * m.cols + c) + seed;
      const auto bits = static_cast<std::uint32_t>(index * 2654435761u) >> 8;
      const float value = static_cast<float>(bits) * 0x1p-23f - 1.0f;
      if (m.dtype == DType::kF32) {
        m.Row<float>(r)[c] = value;
      } else {
        m.Row<BFloat16>(r)[c] = ToBFloat16(value);
      }
    }
  }
}

// The operands of one shape and number of rows.
struct Operands {
  MatrixView x, y, dy, dx;  // activations: (M, K), (M, N), (M, N), (M, K)
  MatrixView a, b, u;       // adapter: (R, K), (N, R), (M, R) float32
  MatrixView da, db;        // (R, K), (N, R) float32

  Operands(Carver& carver, DType activation, std::int64_t M, std::int64_t N, std::int64_t K,
           std::int64_t R) {
    x = carver.Matrix(activation, M, K);
    y = carver.Matrix(activation, M, N);
    dy = carver.Matrix(activation, M, N);
    dx = carver.Matrix(activation, M, K);
    a = carver.Matrix(DType::kF32, R, K);
    b = carver.Matrix(DType::kF32, N, R);
    u = carver.Matrix(DType::kF32, M, R);
    da = carver.Matrix(DType::kF32, R, K);
    db = carver.Matrix(DType::kF32, N, R);
  }
};

class Bench {
 public:
  Bench(Context& context, const BenchGemmOptions& options)
      : context_(context),
        options_(options),
        backend_(MakeCpuBackend(context, options.compute)),
        peak_(MeasurePeakFlops(context, options.compute)),
        bandwidth_(MeasureReadBandwidth()) {}

  void Run(const BenchGemmOptions::Shape& shape, std::vector<BenchRow>* rows) {
    const std::int64_t N = shape.out_features;
    const std::int64_t K = shape.in_features;
    const Arena values(static_cast<std::size_t>(N * K) * 4);
    const MatrixView dense = {values.data(), DType::kF32, N, K, K};
    Fill(dense, 0);
    const QuantizedMatrix weight = Quantize(context_, dense);
    std::vector<QuantizedMatrix> copies = {weight};
    if (std::ranges::min(options_.rows) < kManyRows) {
      while (copies.size() * weight.bytes() < kBeyondCaches) {
        copies.push_back(Quantize(context_, dense));
      }
    }
    for (const std::int64_t M : options_.rows) {
      RunRows(M, N, K, std::span(copies).first(M < kManyRows ? copies.size() : 1), rows);
    }
  }

 private:
  // Bytes per second.
  double MeasureReadBandwidth() {
    const Arena memory(kBeyondCaches);
    std::fill_n(memory.data(), memory.bytes(), std::byte{1});
    const std::function<void()> read = [&] { ReadAll(context_, {memory.data(), memory.bytes()}); };
    return static_cast<double>(memory.bytes()) / BestSeconds(options_.repetitions, {&read, 1})[0];
  }

  void RunRows(std::int64_t M, std::int64_t N, std::int64_t K,
               std::span<const QuantizedMatrix> weights, std::vector<BenchRow>* rows) {
    const std::int64_t R = options_.lora_r;
    const DType activation = options_.compute;
    Carver plan;
    Operands(plan, activation, M, N, K, R);
    const Arena arena(plan.bytes());
    Carver carver(arena);
    const Operands t(carver, activation, M, N, K, R);
    for (const MatrixView& m : {t.x, t.dy, t.a, t.b, t.u}) Fill(m, 1);
    backend_->Reserve({.rows = M, .features = std::max(N, K), .lora_rank = R});

    const double flops = 2.0 * static_cast<double>(M) * static_cast<double>(N * K);
    const int calls = std::max(1, static_cast<int>(kFlopsPerTiming / flops));
    std::size_t next = 0;
    const auto linear = [&](bool adapter) {
      LinearView view;
      view.weight.quantized = weights[next++ % weights.size()].view();
      if (adapter) view.lora = {.a = t.a, .b = t.b, .scale = 1, .dropout = 0, .dropout_key = {}};
      return view;
    };
    const auto repeat = [&](auto run) {
      return std::function<void()>([=] {
        for (int i = 0; i < calls; ++i) run();
      });
    };
    const auto forward = [&](bool adapter) {
      return repeat([&, adapter] {
        const LinearView view = linear(adapter);
        const LinearOutput output = {t.y, adapter ? t.u : MatrixView()};
        backend_->Linear({&view, 1}, t.x, {&output, 1}, Store::kSet);
      });
    };
    const auto backward = [&](bool adapter) {
      return repeat([&, adapter] {
        const LinearView view = linear(adapter);
        LinearGradient gradient = {.dy = t.dy, .u = {}, .da_acc = {}, .db_acc = {}};
        if (adapter) gradient = {.dy = t.dy, .u = t.u, .da_acc = t.da, .db_acc = t.db};
        backend_->LinearBackward({&view, 1}, t.x, {&gradient, 1}, t.dx, Store::kSet);
      });
    };
    std::vector<std::function<void()>> runs = {forward(false), forward(true), backward(false),
                                               backward(true)};
    const bool many = M >= kManyRows;
    const auto dense = many ? MakeDenseGemm(M, N, K, activation, context_.threads()) : nullptr;
    const auto dense_back = many ? MakeDenseGemm(M, K, N, activation, context_.threads()) : nullptr;
    if (dense != nullptr && dense_back != nullptr) {
      runs.push_back(repeat([&] { dense->Run(); }));
      runs.push_back(repeat([&] { dense_back->Run(); }));
    }
    std::vector<double> seconds = BestSeconds(options_.repetitions, runs);
    for (double& s : seconds) s /= calls;

    const double weight_bytes = static_cast<double>(weights[0].bytes());
    for (const int direction : {0, 1}) {
      const std::string name = direction == 0 ? "y = x W^T" : "dx = dy W";
      const double plain = seconds[static_cast<std::size_t>(2 * direction)];
      const double adapted = seconds[static_cast<std::size_t>(2 * direction + 1)];
      BenchRow row = {.op = "nf4 " + name,
                      .shape = fmt::format("{}x{}x{}", M, N, K),
                      .dtype = activation == DType::kBF16 ? "bf16" : "f32",
                      .threads = context_.threads(),
                      .seconds = plain,
                      .unit = "GFLOP/s",
                      .limit_kind = {}};
      if (runs.size() > 4) {
        row.limit = flops / seconds[static_cast<std::size_t>(4 + direction)];
        row.limit_kind = "oneDNN dense, packed";
      } else {
        const double memory = flops * bandwidth_ / weight_bytes;
        row.limit = std::min(peak_, memory);
        row.limit_kind = memory < peak_ ? "read bandwidth" : "arithmetic peak";
      }
      rows->push_back(Finish(row, flops));
      row.op += " + adapter";
      row.seconds = adapted;
      row.limit = flops / plain;
      row.limit_kind = "without adapter";
      rows->push_back(Finish(row, flops));
    }
  }

  static BenchRow Finish(BenchRow row, double flops) {
    row.value = flops / row.seconds * 1e-9;
    row.limit *= 1e-9;
    row.ratio = row.value / row.limit;
    return row;
  }

  Context& context_;
  const BenchGemmOptions& options_;
  std::unique_ptr<Backend> backend_;
  const double peak_;       // FLOP/s
  const double bandwidth_;  // bytes/s
};

}  // namespace

std::vector<BenchRow> BenchNf4Matmul(Context& context, const BenchGemmOptions& options) {
  std::vector<BenchRow> rows;
  Bench bench(context, options);
  for (const BenchGemmOptions::Shape& shape : options.shapes) bench.Run(shape, &rows);
  return rows;
}

}  // namespace qlora::bench
