#include "bench/bench_nf4.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "base/arena.h"
#include "base/random.h"
#include "bench/bench_bandwidth.h"
#include "qlora/nf4.h"

namespace qlora::bench {
namespace {

std::span<std::byte> BytesOfArena(Arena& arena) { return {arena.data(), arena.bytes()}; }

// Writes normal values with the spread of trained weights; a short period, because making them
// takes longer than all measurements.
void FillNormal(Context& context, const MatrixView& w) {
  // The period is not a power of two, so that rows of such a length do not repeat each other.
  constexpr std::int64_t kPeriod = 65536 - 64;
  std::vector<float> values(kPeriod);
  const RandomKey key = MakeKey(0, RandomPlace::kTest);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Normal, because the rank of a value decides the branches of an encoder.
    values[i] = static_cast<float>(0.02 * RandomNormal(key, i));
  }
  context.ParallelFor(w.rows, [&](std::int64_t r, int) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const float value = values[(r * w.cols + c) % kPeriod];
      if (w.dtype == DType::kF32) {
        w.Row<float>(r)[c] = value;
      } else {
        w.Row<BFloat16>(r)[c] = ToBFloat16(value);
      }
    }
  });
}

// The bandwidths that are measured; a copy writes `writes` times the bytes that it reads.
struct Bandwidth {
  const char* name;
  std::size_t writes;
};
// dequantizing reads 4 bits and writes 16 (1:4) or 32 (1:8, about 1:7 with the scales); quantizing
// reads 16 or 32 and writes 4, for which reading is the limit.
constexpr Bandwidth kBandwidths[] = {{"read", 0}, {"copy", 1}, {"copy 1:4", 4}, {"copy 1:7", 7}};
constexpr std::size_t kRead = 0;
constexpr std::size_t kCopy4 = 2;
constexpr std::size_t kCopy7 = 3;

// One operation on n values and the bytes by which its limit is reckoned.
struct Operation {
  std::string name;
  std::string dtype;
  double bytes;
  std::size_t limit;  // index of the bandwidth that limits it
  std::function<void()> run;
};

// The matrices of one size, and the operations on them.
class SizeBench {
 public:
  SizeBench(Context& context, Clock clock, const BenchNf4Options& options, std::int64_t size)
      : context_(context),
        clock_(clock),
        options_(options),
        size_(size),
        memory_f32_(static_cast<std::size_t>(size * size) * 4),
        memory_bf16_(static_cast<std::size_t>(size * size) * 2),
        memory_out_(static_cast<std::size_t>(size * size) * 4),
        plain_{.block_size = options.block_size, .scale_type = ScaleType::kF32},
        nested_{.block_size = options.block_size},
        search_(plain_),
        storage_(StorageBytes(size, size, plain_)) {
    search_.scale_search = true;
    FillNormal(context, w_f32());
    FillNormal(context, View(memory_bf16_, DType::kBF16));
    FillNormal(context, View(memory_out_, DType::kF32));
    q_plain_ = Quantize(context, w_f32(), plain_);
    q_nested_ = Quantize(context, w_f32(), nested_);
  }

  void Run(std::vector<BenchRow>* rows) {
    const std::vector<Operation> operations = Operations();
    std::vector<double> bytes;
    std::vector<std::function<void()>> runs = Limits(bytes);
    for (const Operation& operation : operations) runs.push_back(operation.run);
    // The search, the last of them, takes longer than all others, and is limited by arithmetic,
    // which others on the machine disturb less than memory: a few rounds are enough.
    const std::span<const std::function<void()>> all = runs;
    std::vector<double> seconds =
        BestSeconds(clock_, options_.repetitions, all.first(all.size() - 1));
    seconds.push_back(BestSeconds(clock_, 2, all.last(1)).front());

    const std::string shape = fmt::format("{}x{}", size_, size_);
    const int threads = context_.threads();
    std::vector<double> bandwidths;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bandwidths.push_back(bytes[i] / seconds[i] / 1e9);
      rows->push_back({kBandwidths[i].name, shape, "f32", threads, seconds[i], bandwidths[i],
                       "GB/s", 0, "", 0});
    }
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const Operation& operation = operations[i];
      const double time = seconds[bytes.size() + i];
      // Values, not bytes: forms of other sizes can be compared.
      const double value = values() / time / 1e9;
      // Values per second at this bandwidth, if nothing but the bytes cost time.
      const double limit = bandwidths[operation.limit] * values() / operation.bytes;
      rows->push_back({operation.name, shape, operation.dtype, threads, time, value, "Gelem/s",
                       limit, fmt::format("{} bandwidth", kBandwidths[operation.limit].name),
                       value / limit});
    }
  }

 private:
  double values() const { return static_cast<double>(size_ * size_); }
  MatrixView View(Arena& memory, DType dtype) {
    return {memory.data(), dtype, size_, size_, size_};
  }
  MatrixView w_f32() { return View(memory_f32_, DType::kF32); }

  std::vector<Operation> Operations() {
    std::vector<Operation> out;
    for (const QuantizedMatrix* q : {&q_plain_, &q_nested_}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const bool wide = dtype == DType::kF32;
        const MatrixView to = View(memory_out_, dtype);
        out.push_back(
            {q == &q_plain_ ? "dequantize nf4" : "dequantize nf4, double quantized",
             ShortName(dtype), static_cast<double>(q->bytes()) + values() * (wide ? 4 : 2),
             wide ? kCopy7 : kCopy4, [this, q, to] { Dequantize(context_, q->view(), to); }});
      }
    }
    const auto quantize = [&](const char* name, const MatrixView& w, const QuantizeOptions& how) {
      out.push_back({name, ShortName(w.dtype), values() * static_cast<double>(BytesOf(w.dtype, 1)),
                     kRead,
                     [this, w, &how] { QuantizeInto(context_, w, how, BytesOfArena(storage_)); }});
    };
    const MatrixView w_bf16 = View(memory_bf16_, DType::kBF16);
    quantize("quantize nf4", w_f32(), plain_);
    quantize("quantize nf4", w_bf16, plain_);
    quantize("quantize nf4, double quantized", w_f32(), nested_);
    quantize("quantize nf4, double quantized", w_bf16, nested_);
    quantize("quantize nf4, scale search", w_f32(), search_);
    return out;
  }

  // The functions that measure kBandwidths, and the bytes that each reads and writes.
  std::vector<std::function<void()>> Limits(std::vector<double>& bytes) {
    std::vector<std::function<void()>> runs;
    for (const Bandwidth& bandwidth : kBandwidths) {
      // Reads a part of the memory, so that the written bytes fit.
      const std::size_t part =
          memory_f32_.bytes() / std::max<std::size_t>(1, bandwidth.writes) / 64 * 64;
      const auto from = BytesOfArena(memory_f32_).first(part);
      const auto to = BytesOfArena(memory_out_).first(part * bandwidth.writes);
      bytes.push_back(static_cast<double>(from.size() + to.size()));
      if (bandwidth.writes == 0) {
        runs.push_back([this, from] { ReadAll(context_, from); });
      } else {
        runs.push_back([this, from, to] { CopyAll(context_, from, to); });
      }
    }
    return runs;
  }

  Context& context_;
  Clock clock_;
  const BenchNf4Options& options_;
  std::int64_t size_;
  Arena memory_f32_;
  Arena memory_bf16_;
  Arena memory_out_;
  QuantizeOptions plain_;
  QuantizeOptions nested_;
  QuantizeOptions search_;
  // Reused: allocating it again would time the pages of the system. plain_ takes the most room.
  Arena storage_;
  QuantizedMatrix q_plain_;
  QuantizedMatrix q_nested_;
};

}  // namespace

std::vector<BenchRow> BenchNf4(Context& context, Clock clock, const BenchNf4Options& options) {
  std::vector<BenchRow> rows;
  // Sizes below and beyond the caches have different limits.
  for (const std::int64_t size : options.sizes) {
    SizeBench(context, clock, options, size).Run(&rows);
  }
  return rows;
}

}  // namespace qlora::bench
