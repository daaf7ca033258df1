#include "bench/bench_peak.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>

#include "machine/peak.h"

namespace qlora::bench {
namespace {

constexpr int kRuns = 32;
constexpr std::int64_t kAdditions = std::int64_t{1} << 20;

// Additions of registers, each of which waits for the one before it: one cycle each on every
// processor that we know.
void AddInTurn() {
  constexpr int kUnrolled = 64;
  std::uint64_t sum = 0;
  std::uint64_t addend = 1;
  // The compiler must not know the values, or it would compute the sum itself.
  asm volatile("" : "+r"(addend));
  for (std::int64_t i = 0; i < kAdditions; i += kUnrolled) {
#pragma GCC unroll 64
    for (int k = 0; k < kUnrolled; ++k) {
      sum += addend;
      asm volatile("" : "+r"(sum));
    }
  }
}

}  // namespace

std::vector<BenchRow> BenchPeak(Context& context, Clock clock) {
  std::vector<BenchRow> rows;
  for (const PeakLoop& loop : PeakLoops()) {
    if (!loop.is_there()) continue;
    double operations = 0;
    const auto on_all_threads = [&] {
      context.ParallelFor(context.threads(), [](std::int64_t, int) { AddInTurn(); });
    };
    const std::vector<std::function<void()>> runs = {
        [&] { operations = RunPeakLoop(context, loop); }, on_all_threads};
    const std::vector<double> seconds = BestSeconds(clock, kRuns, runs);
    const double cycle = seconds[1] / static_cast<double>(kAdditions);
    BenchRow row = {.op = loop.instruction,
                    .shape = "registers",
                    .dtype = loop.operands,
                    .threads = context.threads(),
                    .seconds = seconds[0],
                    .value = operations / seconds[0] / 1e9,
                    .unit = "GOP/s",
                    .limit_kind = {}};
    rows.push_back(row);
    row.op += ", each";
    row.value = seconds[0] / static_cast<double>(loop.instructions) / cycle;
    row.unit = fmt::format("cycles of {:.2f} ns", cycle * 1e9);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace qlora::bench
