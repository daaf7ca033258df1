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

void BenchSize(Context& context, const BenchNf4Options& options, std::int64_t size,
               std::vector<BenchRow>* rows) {
  const auto n = static_cast<std::size_t>(size * size);
  Arena memory_f32(n * 4);
  Arena memory_bf16(n * 2);
  Arena memory_out(n * 4);
  const MatrixView w_f32 = {memory_f32.data(), DType::kF32, size, size, size};
  const MatrixView w_bf16 = {memory_bf16.data(), DType::kBF16, size, size, size};
  const MatrixView out_f32 = {memory_out.data(), DType::kF32, size, size, size};
  const MatrixView out_bf16 = {memory_out.data(), DType::kBF16, size, size, size};
  FillNormal(context, w_f32);
  FillNormal(context, w_bf16);
  FillNormal(context, out_f32);

  const QuantizeOptions plain = {.block_size = options.block_size, .scale_type = ScaleType::kF32};
  const QuantizeOptions nested = {.block_size = options.block_size};
  QuantizeOptions search = plain;
  search.scale_search = true;
  // Reused: allocating it again would time the pages of the system. `plain` takes the most room.
  Arena storage(StorageBytes(size, size, plain));
  const QuantizedMatrix q_plain = Quantize(context, w_f32, plain);
  const QuantizedMatrix q_nested = Quantize(context, w_f32, nested);

  const auto values = static_cast<double>(n);
  std::vector<Operation> operations;
  for (const QuantizedMatrix* q : {&q_plain, &q_nested}) {
    const std::string suffix = q == &q_plain ? "" : ", double quantized";
    for (const MatrixView& out : {out_bf16, out_f32}) {
      const bool wide = out.dtype == DType::kF32;
      operations.push_back({"dequantize nf4" + suffix, wide ? "f32" : "bf16",
                            static_cast<double>(q->bytes()) + values * (wide ? 4 : 2),
                            wide ? kCopy7 : kCopy4,
                            [&context, q, out] { Dequantize(context, q->view(), out); }});
    }
  }
  const auto quantize = [&](const std::string& name, const MatrixView& w,
                            const QuantizeOptions& how) {
    const bool wide = w.dtype == DType::kF32;
    operations.push_back(
        {name, wide ? "f32" : "bf16", values * (wide ? 4 : 2), kRead,
         [&context, &storage, &w, &how] { QuantizeInto(context, w, how, BytesOfArena(storage)); }});
  };
  quantize("quantize nf4", w_f32, plain);
  quantize("quantize nf4", w_bf16, plain);
  quantize("quantize nf4, double quantized", w_f32, nested);
  quantize("quantize nf4, double quantized", w_bf16, nested);
  quantize("quantize nf4, scale search", w_f32, search);

  std::vector<std::function<void()>> runs;
  std::vector<double> bytes;
  for (const Bandwidth& bandwidth : kBandwidths) {
    // Reads a part of the memory, so that the written bytes fit.
    const std::size_t part = n * 4 / std::max<std::size_t>(1, bandwidth.writes) / 64 * 64;
    const auto from = BytesOfArena(memory_f32).first(part);
    const auto to = BytesOfArena(memory_out).first(part * bandwidth.writes);
    bytes.push_back(static_cast<double>(from.size() + to.size()));
    if (bandwidth.writes == 0) {
      runs.push_back([&context, from] { ReadAll(context, from); });
    } else {
      runs.push_back([&context, from, to] { CopyAll(context, from, to); });
    }
  }
  for (const Operation& operation : operations) runs.push_back(operation.run);
  // The search, the last of them, takes longer than all others, and is limited by arithmetic, which
  // others on the machine disturb less than memory: a few rounds are enough.
  const std::span<const std::function<void()>> all = runs;
  std::vector<double> seconds = BestSeconds(options.repetitions, all.first(all.size() - 1));
  seconds.push_back(BestSeconds(2, all.last(1)).front());

  const std::string shape = fmt::format("{}x{}", size, size);
  const int threads = context.threads();
  std::vector<double> bandwidths;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bandwidths.push_back(bytes[i] / seconds[i] / 1e9);
    rows->push_back(
        {kBandwidths[i].name, shape, "f32", threads, seconds[i], bandwidths[i], "GB/s", 0, "", 0});
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const double time = seconds[bytes.size() + i];
    // Values, not bytes: forms of other sizes can be compared.
    const double value = values / time / 1e9;
    // Values per second at this bandwidth, if nothing but the bytes cost time.
    const double limit = bandwidths[operation.limit] * values / operation.bytes;
    rows->push_back({operation.name, shape, operation.dtype, threads, time, value, "Gelem/s", limit,
                     fmt::format("{} bandwidth", kBandwidths[operation.limit].name),
                     value / limit});
  }
}

}  // namespace

std::vector<BenchRow> BenchNf4(Context& context, const BenchNf4Options& options) {
  std::vector<BenchRow> rows;
  // Sizes below and beyond the caches have different limits.
  for (const std::int64_t size : options.sizes) BenchSize(context, options, size, &rows);
  return rows;
}

}  // namespace qlora::bench
