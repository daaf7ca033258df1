#include "bench/bench_limits.h"

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "base/stopwatch.h"
#include "bench/bench_bandwidth.h"
#include "bench/bench_peak.h"
#include "bench/bench_row.h"

namespace qlora::bench {
namespace {

constexpr int kProducts = 10;
// Large enough for full speed on any device: 1.1e12 FLOPs, 134 MB per operand in bfloat16.
constexpr std::int64_t kSide = 8192;

// Fills m with random values; each row begins at another value. A device of limited power runs
// products of zeros, or of equal rows, faster than products of data.
void FillRandom(Memory& memory, const MatrixView& m) {
  std::vector<float> values(m.cols + m.rows);
  const RandomKey key = MakeKey(7, RandomPlace::kTest);
  for (std::int64_t i = 0; i < std::ssize(values); ++i) values[i] = 2 * RandomUniform(key, i) - 1;
  std::vector<BFloat16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), ToBFloat16);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    if (m.dtype == DType::kF32) {
      Upload(memory, std::span<const float>(values).subspan(r, m.cols), Rows(m, r, 1));
    } else {
      Upload(memory, std::span<const BFloat16>(rounded).subspan(r, m.cols), Rows(m, r, 1));
    }
  }
}

double ProductFlops(Backend& backend, DType compute) {
  Arena arena(3 * BytesOf(compute, kSide * kSide), backend.memory());
  Carver carver(arena);
  const MatrixView x = carver.Matrix(compute, kSide, kSide);
  const MatrixView w = carver.Matrix(compute, kSide, kSide);
  const MatrixView y = carver.Matrix(compute, kSide, kSide);
  FillRandom(backend.memory(), x);
  FillRandom(backend.memory(), w);
  backend.Reserve({.rows = kSide, .features = kSide});
  const std::vector<LinearView> linears = {{.weight = w, .bias = {}, .lora = {}}};
  const std::vector<LinearOutput> outputs = {{y, {}}};
  // Ops are queued: without waiting, only the launch would be timed.
  const QueueEnd end(backend.memory());
  double best = 1e30;
  for (int i = 0; i <= kProducts; ++i) {
    end.Wait();
    const Stopwatch watch;
    backend.Run(ops::Linear{linears, x, outputs});
    end.Wait();
    if (i > 0) best = std::min(best, watch.seconds());  // the first one warms up
  }
  return 2.0 * kSide * kSide * kSide / best;
}

}  // namespace

Limit MeasureFlops(Context& context, Backend& backend, DType compute) {
  // A CPU has no library product whose speed would be a limit for ours; registers have no memory to
  // wait for.
  if (IsHost(backend.memory())) return {MeasurePeakFlops(context, compute), "peak multiply-adds"};
  return {ProductFlops(backend, compute), "a product of 8192 x 8192"};
}

Bandwidth::Bandwidth(Context& context, Backend& backend)
    : context_(context), backend_(backend), from_(kBeyondCaches, backend.memory()) {
  if (IsHost(backend.memory())) {
    std::fill_n(from_.data(), from_.bytes(), std::byte{1});  // pages of zeros are not read
    limit_.kind = "read bandwidth";
  } else {
    // A device is limited by reads and writes together, so that both are measured.
    to_ = Arena(kBeyondCaches, backend.memory());
    limit_.kind = "copy bandwidth";
  }
}

void Bandwidth::Measure() {
  const auto bytes = static_cast<double>(from_.bytes());
  if (IsHost(backend_.memory())) {
    const Stopwatch watch;
    ReadAll(context_, {from_.data(), from_.bytes()});
    limit_.value = std::max(limit_.value, bytes / watch.seconds());
    return;
  }
  const auto cols = static_cast<std::int64_t>(from_.bytes() / sizeof(float));
  const MatrixView x = {from_.data(), DType::kF32, 1, cols, cols};
  const MatrixView y = {to_.data(), DType::kF32, 1, cols, cols};
  const QueueEnd end(backend_.memory());
  end.Wait();
  const Stopwatch watch;
  // Several, so that the launch does not count.
  constexpr int kCopies = 10;
  for (int i = 0; i < kCopies; ++i) backend_.Run(ops::Copy{x, y});
  end.Wait();
  // 2: each byte is read and written.
  limit_.value = std::max(limit_.value, 2 * bytes * kCopies / watch.seconds());
}

}  // namespace qlora::bench
