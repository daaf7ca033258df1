#include "bench/bench_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "backend/backend_factory.h"
#include "base/arena.h"
#include "base/check.h"
#include "base/matrix.h"
#include "bench/bench_bandwidth.h"
#include "bench/bench_gemm_dense.h"
#include "bench/bench_gemm_ggml.h"
#include "bench/bench_weights.h"
#include "ggml/encode.h"
#include "machine/peak.h"
#include "machine/simd_target.h"
#include "model/shared_options.h"
#include "qlora/nf4.h"

namespace qlora::bench {
namespace {

// Products of fewer rows wait for memory when the weights come from there, as they do in use.
constexpr std::int64_t kManyRows = 128;
// Fewer rows are for generating text, which has no backward pass.
constexpr std::int64_t kTrainedRows = 16;
// Work of one timing, per thread: it takes as long as a run that measures a limit, so that the best
// of several timings is as likely to be free of disturbances as the limit is.
constexpr double kFlopsPerTiming = 0.75e9;

using Runs = std::vector<std::function<void()>>;

// y(M, N) = x(M, K) W(N, K)^T
struct Shape {
  std::int64_t M, N, K;
  double flops() const { return 2.0 * static_cast<double>(M) * static_cast<double>(N * K); }
};

// A function that calls another one several times.
std::function<void()> Repeat(int calls, std::function<void()> run) {
  return [calls, run = std::move(run)] {
    for (int i = 0; i < calls; ++i) run();
  };
}

// The operands of one shape and number of rows.
struct Operands {
  MatrixView x, y, dy, dx;  // activations: (M, K), (M, N), (M, N), (M, K)
  MatrixView a, b, u;       // adapter: (R, K), (N, R), (M, R) float32
  MatrixView da, db;        // (R, K), (N, R) float32

  Operands() = default;
  Operands(Carver& carver, DType activation, const Shape& shape, std::int64_t R) {
    const auto [M, N, K] = shape;
    x = carver.Matrix(activation, M, K);
    y = carver.Matrix(activation, M, N);
    // dy apart from y, and dx from x: operands of an op do not overlap.
    dy = carver.Matrix(activation, M, N);
    dx = carver.Matrix(activation, M, K);
    a = carver.Matrix(DType::kF32, R, K);
    b = carver.Matrix(DType::kF32, N, R);
    u = carver.Matrix(DType::kF32, M, R);
    da = carver.Matrix(DType::kF32, R, K);
    db = carver.Matrix(DType::kF32, N, R);
  }
};

// The products of one shape, as functions that run them `calls` times.
class Products {
 public:
  Products(Backend& backend, const Shape& shape, DType activation, std::int64_t R, int calls)
      : backend_(backend), calls_(calls), arena_(BytesOfOperands(activation, shape, R)) {
    Carver carver(arena_);
    t_ = Operands(carver, activation, shape, R);
    for (const MatrixView& m : {t_.x, t_.dy, t_.a, t_.b, t_.u}) FillUniform(m, 1);
    backend.Reserve({.rows = shape.M,
                     .features = std::max(shape.N, shape.K),
                     .lora_rank = R,
                     .gradient_rows = shape.M});
  }

  // weights: copies of one, taken in turn.
  std::function<void()> Forward(std::span<const WeightView> weights, bool adapter) {
    return Repeat(calls_, [this, weights, adapter] {
      const LinearView view = Linear(weights, adapter);
      const LinearOutput output = {t_.y, adapter ? t_.u : MatrixView()};
      backend_.Run(ops::Linear{{&view, 1}, t_.x, {&output, 1}, Store::kSet});
    });
  }

  std::function<void()> Backward(std::span<const WeightView> weights, bool adapter) {
    return Repeat(calls_, [this, weights, adapter] {
      const LinearView view = Linear(weights, adapter);
      LinearGradient gradient = {.dy = t_.dy, .u = {}, .da_acc = {}, .db_acc = {}};
      if (adapter) gradient = {.dy = t_.dy, .u = t_.u, .da_acc = t_.da, .db_acc = t_.db};
      backend_.Run(ops::LinearBackward{{&view, 1}, t_.x, {&gradient, 1}, t_.dx, Store::kSet});
    });
  }

 private:
  static std::size_t BytesOfOperands(DType activation, const Shape& shape, std::int64_t R) {
    Carver plan;
    Operands(plan, activation, shape, R);
    return plan.bytes();
  }

  LinearView Linear(std::span<const WeightView> weights, bool adapter) {
    LinearView view;
    view.weight = weights[next_++ % weights.size()];
    // Without dropout, whose mask would be timed as well.
    if (adapter) view.lora = {.a = t_.a, .b = t_.b, .scale = 1, .dropout = 0, .dropout_key = {}};
    return view;
  }

  Backend& backend_;
  int calls_;
  Arena arena_;
  Operands t_;
  std::size_t next_ = 0;
};

// What limits the products of one shape, measured among them. From kManyRows rows on products are
// limited by arithmetic, and a dense product of a library shows how much of the peak can be had at
// this shape; otherwise the lower of peak and bandwidth is the limit.
class ProductLimits {
 public:
  // compute: of the operands of the products; kI8 has the peak of its arithmetic as a limit.
  // memory: more than caches hold.
  ProductLimits(Context& context, const Shape& shape, DType compute,
                std::span<const std::byte> memory)
      : context_(context), shape_(shape), compute_(compute), memory_(memory) {
    // A dense product in 8 bits has another rule of rounding.
    if (shape.M < kManyRows || compute == DType::kI8) return;
    // Other targets have float32 products only.
    if (MultipliesBfloat16(ActiveSimdTarget())) dense_type_ = compute;
    dense_ = MakeDenseGemm(shape.M, shape.N, shape.K, dense_type_, context.threads());
    dense_back_ = MakeDenseGemm(shape.M, shape.K, shape.N, dense_type_, context.threads());
  }

  // Adds the functions whose times Of needs.
  void AddRuns(int calls, Runs& runs) {
    first_ = runs.size();
    calls_ = calls;
    if (beside_dense()) {
      runs.push_back(Repeat(calls, [this] { dense_->Run(); }));
      runs.push_back(Repeat(calls, [this] { dense_back_->Run(); }));
      // Its threads spin for a while after the last product, on the cores that come next.
      runs.push_back([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    } else {
      runs.push_back([this] { ReadAll(context_, memory_); });
      runs.push_back([this] {
        peak_flops_ = RunPeakLoop(context_, PeakLoopOf(ActiveSimdTarget(), compute_));
      });
    }
  }

  // The limit of a product, in FLOP/s, and its name. seconds: of all runs. weight_bytes: of W.
  std::pair<double, std::string> Of(bool forward, std::span<const double> seconds,
                                    double weight_bytes) const {
    if (beside_dense()) {
      return {shape_.flops() * calls_ / seconds[first_ + (forward ? 0 : 1)],
              fmt::format("oneDNN dense {}, packed", ShortName(dense_type_))};
    }
    const double bandwidth = static_cast<double>(memory_.size()) / seconds[first_];
    const double memory = shape_.flops() * bandwidth / weight_bytes;
    const double peak = peak_flops_ / seconds[first_ + 1];
    // The roofline: FLOP/s are at most the peak, and at most FLOPs per byte of the weight times
    // bandwidth.
    return {std::min(peak, memory), memory < peak ? "read bandwidth" : "arithmetic peak"};
  }

 private:
  bool beside_dense() const { return dense_ != nullptr && dense_back_ != nullptr; }

  Context& context_;
  Shape shape_;
  DType compute_;
  std::span<const std::byte> memory_;
  DType dense_type_ = DType::kF32;
  std::unique_ptr<DenseGemm> dense_;       // or null
  std::unique_ptr<DenseGemm> dense_back_;  // or null
  std::size_t first_ = 0;                  // of the runs
  int calls_ = 1;
  double peak_flops_ = 0;
};

// Parses positive numbers separated by 'x', as many as `count`.
std::vector<std::int64_t> ParseSizes(const std::string& key, const std::string& text,
                                     std::size_t count) {
  std::vector<std::int64_t> sizes;
  for (const char* at = text.c_str(); sizes.size() < count;) {
    char* end = nullptr;
    const std::int64_t size = std::strtoll(at, &end, 10);
    const bool last = sizes.size() + 1 == count;
    if (end == at || size < 1 || size > 1 << 20 || *end != (last ? '\0' : 'x')) {
      ThrowInvalidInput("{}: expected {}, found '{}'", key,
                        count == 1 ? "a number of rows" : "weights as NxK, for example 4096x2048",
                        text);
    }
    sizes.push_back(size);
    at = end + 1;
  }
  return sizes;
}

class Bench {
 public:
  Bench(Context& context, Clock clock, const BenchGemmOptions& options)
      : context_(context),
        clock_(clock),
        repetitions_(static_cast<int>(options.repetitions)),
        lora_r_(options.lora_r),
        precision_(ParsePrecision(options.compute_dtype, *BackendFactory::Of("cpu"), true)),
        compute_(precision_.frozen == FrozenProducts::kFloat ? precision_.activation : DType::kI8),
        backend_(MakeCpuBackend(context, precision_)),
        memory_(kBeyondCaches) {
    // Pages that were never written are one page of zeros, which stays in the cache.
    std::fill_n(memory_.data(), memory_.bytes(), std::byte{1});
    if (!options.ggml.empty()) ggml_ = std::make_unique<Ggml>(options.ggml, context.threads());
    for (const std::string& rows : options.rows) rows_.push_back(ParseSizes("rows", rows, 1)[0]);
  }

  void Run(const std::string& format, std::int64_t N, std::int64_t K, std::vector<BenchRow>* rows) {
    format_ = format;
    const BlockFormatInfo* info = ParseBlocks(format, K);
    if (info == nullptr) return RunNf4(N, K, rows);
    BlockView blocks = {.format = info->format, .rows = N, .cols = K};
    const std::size_t bytes = BytesOf(blocks);
    const std::size_t count = Copies(bytes);
    Arena storage(bytes * count);
    // All rows are the same row: encoding takes long, and products do not depend on the values.
    std::vector<float> row(static_cast<std::size_t>(K));
    FillUniform(MakeView(row.data(), 1, K), 0);
    std::vector<std::byte> encoded(blocks.row_bytes());
    if (EncodeBlocks(info->format, row.data(), K / info->values, nullptr, encoded.data()) >= 0) {
      ThrowInvalidInput("weight_formats: {} cannot hold values below 1", format);
    }
    std::vector<WeightView> weights;
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* to = storage.data() + i * bytes;
      for (std::int64_t r = 0; r < N; ++r) {
        std::ranges::copy(encoded, to + static_cast<std::size_t>(r) * encoded.size());
      }
      blocks.data = to;
      weights.emplace_back(blocks);
    }
    RunAll(N, blocks.cols, weights, {}, rows);
  }

 private:
  // Copies of a weight, read in turn, so that each comes from memory as in a model of many layers.
  std::size_t Copies(std::size_t bytes) const {
    return std::ranges::min(rows_) < kManyRows ? 1 + kBeyondCaches / bytes : 1;
  }

  void RunAll(std::int64_t N, std::int64_t K, std::span<const WeightView> weights,
              std::span<const WeightView> prepacked, std::vector<BenchRow>* rows) {
    for (const std::int64_t M : rows_) {
      const std::size_t used = M < kManyRows ? weights.size() : 1;
      RunRows({M, N, K}, weights.first(used), prepacked.first(std::min(used, prepacked.size())),
              rows);
    }
  }

  void RunNf4(std::int64_t N, std::int64_t K, std::vector<BenchRow>* rows) {
    Arena values(static_cast<std::size_t>(N * K) * 4);
    const MatrixView dense = {values.data(), DType::kF32, N, K, K};
    FillUniform(dense, 0);
    // In one arena, as the weights of a model are.
    const std::size_t bytes = StorageBytes(N, K, QuantizeOptions());
    const std::size_t count = Copies(bytes);
    Arena storage(bytes * count);
    const auto quantized = [&](std::size_t i) {
      const std::span<std::byte> memory(storage.data() + i * bytes, bytes);
      return WeightView(QuantizeInto(context_, dense, QuantizeOptions(), memory));
    };
    std::vector<WeightView> row_major;
    for (std::size_t i = 0; i < count; ++i) row_major.push_back(quantized(i));
    const std::size_t prepacked_bytes = backend_->PrepackedBytes(row_major[0]);
    Arena prepacked_storage(count * prepacked_bytes);
    std::vector<WeightView> prepacked;
    for (std::size_t i = 0; i < count && prepacked_bytes > 0; ++i) {
      std::byte* memory = prepacked_storage.data() + i * prepacked_bytes;
      backend_->Prepack(row_major[i], memory);
      prepacked.emplace_back(row_major[i].quantized, memory);
    }
    RunAll(N, K, row_major, prepacked, rows);
  }

  // A product that is measured without and with an adapter.
  struct Measured {
    const char* name;
    bool forward;
  };

  // prepacked: the same weights, or none.
  void RunRows(const Shape& shape, std::span<const WeightView> weights,
               std::span<const WeightView> prepacked, std::vector<BenchRow>* rows) {
    const double flops = shape.flops();
    // Small products are repeated until a timing is long enough for the clock.
    const int calls = std::max(1, static_cast<int>(kFlopsPerTiming * context_.threads() / flops));
    Products products(*backend_, shape, precision_.activation, lora_r_, calls);
    std::vector<Measured> measured = {{"y = x W^T", true}};
    Runs runs = {products.Forward(weights, false), products.Forward(weights, true)};
    if (!prepacked.empty()) {
      measured.push_back({"y = x W^T, prepacked", true});
      runs.push_back(products.Forward(prepacked, false));
      runs.push_back(products.Forward(prepacked, true));
    }
    if (shape.M >= kTrainedRows) {
      measured.push_back({"dx = dy W", false});
      runs.push_back(products.Backward(weights, false));
      runs.push_back(products.Backward(weights, true));
    }
    const bool beside_ggml = ggml_ != nullptr && weights[0].form() == WeightForm::kBlocks;
    if (beside_ggml) {
      std::vector<float> x(static_cast<std::size_t>(shape.M * shape.K));
      FillUniform(MakeView(x.data(), shape.M, shape.K), 1);
      runs.push_back(ggml_->Products(weights[0].blocks, std::ssize(weights), x, calls));
    }
    const std::size_t ggml_run = runs.size() - 1;
    ProductLimits limits(context_, shape, compute_, {memory_.data(), memory_.bytes()});
    limits.AddRuns(calls, runs);
    // Limits and measurements in turn, in one run: a clock that is lowered meets both.
    const std::vector<double> seconds = BestSeconds(clock_, repetitions_, runs);
    for (std::size_t i = 0; i < measured.size(); ++i) {
      const double plain = seconds[2 * i] / calls;
      BenchRow row = {.op = fmt::format("{} {}", format_, measured[i].name),
                      .shape = fmt::format("{}x{}x{}", shape.M, shape.N, shape.K),
                      .dtype = ShortName(compute_),
                      .threads = context_.threads(),
                      .seconds = plain,
                      .unit = "GFLOP/s",
                      .limit_kind = {}};
      std::tie(row.limit, row.limit_kind) =
          limits.Of(measured[i].forward, seconds, static_cast<double>(BytesOf(weights[0])));
      rows->push_back(Finish(row, flops));
      if (beside_ggml && i == 0) {
        BenchRow other = row;
        other.op += ", ggml";
        other.dtype = "f32";
        other.seconds = seconds[ggml_run] / calls;
        rows->push_back(Finish(other, flops));
      }
      row.op += " + adapter";
      row.seconds = seconds[2 * i + 1] / calls;
      // The cost of the adapter: the same product without it is the limit.
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
  const Clock clock_;
  const int repetitions_;
  const std::int64_t lora_r_;
  const Precision precision_;  // with 8 bits forward and backward, if any
  const DType compute_;        // of the operands of products with W
  std::vector<std::int64_t> rows_;
  std::string format_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Ggml> ggml_;  // or null
  Arena memory_;                // for the read bandwidth
};

}  // namespace

void BenchGemmOptions::Declare(OptionTable& table) {
  table.Section("nf4-matmul");
  table.Add("shapes", &shapes, "weights as NxK (outputs x inputs), comma-separated");
  table.Add(
      "ggml", &ggml,
      "folder with shared libraries of llama.cpp, whose products with blocks are measured too");
  table.Add("rows", &rows, "numbers of activation rows, comma-separated");
  table.Add("repetitions", &repetitions, "timed repetitions; the fastest is reported");
}

std::vector<BenchRow> BenchNf4Matmul(Context& context, Clock clock,
                                     const BenchGemmOptions& options) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const std::string& shape : options.shapes) shapes.push_back(ParseSizes("shapes", shape, 2));
  std::vector<BenchRow> rows;
  Bench bench(context, clock, options);
  for (const std::string& format : options.weight_formats) {
    for (const std::vector<std::int64_t>& shape : shapes) {
      bench.Run(format, shape[0], shape[1], &rows);
    }
  }
  return rows;
}

}  // namespace qlora::bench
