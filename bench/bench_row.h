// One measured figure, with the limit that the same run measured.
#ifndef QLORA_BENCH_BENCH_ROW_H_
#define QLORA_BENCH_BENCH_ROW_H_

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_clock.h"
#include "qlora/tensor.h"

namespace qlora::bench {

// Returns "bf16", "i8" or "f32".
inline const char* ShortName(DType dtype) {
  if (dtype == DType::kI8) return "i8";
  return dtype == DType::kBF16 ? "bf16" : "f32";
}

// Bytes that no cache holds.
inline constexpr std::size_t kBeyondCaches = std::size_t{256} << 20;

struct BenchRow {
  std::string op;     // "dequantize nf4", "read", ...
  std::string shape;  // "4096x4096"
  std::string dtype;  // of the values in or out, or of operands of products: "f32", "bf16", "i8"
  int threads = 1;
  double seconds = 0;      // the best repetition
  double value = 0;        // in `unit`
  std::string unit;        // "GB/s", "Gelem/s", ...
  double limit = 0;        // in `unit`: the machine's limit; 0 where the row is itself a limit
  std::string limit_kind;  // names the limit: "copy bandwidth", ...
  double ratio = 0;        // value / limit; 0 without a limit
};

// Rows of one measurement, which differ in their figures alone.
class RowList {
 public:
  RowList(std::string shape, DType dtype, int threads)
      : shape_(std::move(shape)), dtype_(ShortName(dtype)), threads_(threads) {}

  // limit: in `unit`; without one, 0, which has no ratio.
  void Add(std::string op, double seconds, double value, std::string unit, double limit = 0,
           std::string limit_kind = "") {
    rows_.push_back({std::move(op), shape_, dtype_, threads_, seconds, value, std::move(unit),
                     limit, std::move(limit_kind), limit > 0 ? value / limit : 0});
  }
  std::vector<BenchRow> Take() { return std::move(rows_); }

 private:
  std::string shape_;
  std::string dtype_;
  int threads_;
  std::vector<BenchRow> rows_;
};

// Returns {"clock": "wall" or "cpu", "results": [{"op", "shape", "dtype", "threads", "seconds",
// "value", "unit", "limit", "limit_kind", "ratio"}, ...]}, indented by two.
std::string ToJson(std::span<const BenchRow> rows, Clock clock);

// Returns a table for people, one row a line, with a heading, and a line about the clock unless it
// is kWall.
std::string ToText(std::span<const BenchRow> rows, Clock clock);

// Seconds of the fastest of the repetitions, for each of the given functions. They run in turn, so
// that a disturbance of the machine meets all of them; the first round only warms up.
std::vector<double> BestSeconds(Clock clock, int repetitions,
                                std::span<const std::function<void()>> functions);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_ROW_H_
