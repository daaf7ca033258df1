#include "bench/bench_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace qlora::bench {

std::string ToJson(std::span<const BenchRow> rows, Clock clock) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    // Scripts compare ratios between commits: keys are part of the interface.
    results.push_back({{"op", row.op},
                       {"shape", row.shape},
                       {"dtype", row.dtype},
                       {"threads", row.threads},
                       {"seconds", row.seconds},
                       {"value", row.value},
                       {"unit", row.unit},
                       {"limit", row.limit},
                       {"limit_kind", row.limit_kind},
                       {"ratio", row.ratio}});
  }
  return nlohmann::ordered_json{{"clock", clock == Clock::kCpu ? "cpu" : "wall"},
                                {"results", std::move(results)}}
      .dump(2);
}

std::string ToText(std::span<const BenchRow> rows, Clock clock) {
  std::string out = fmt::format("{:<34} {:<12} {:<5} {:>7} {:>10} {:>9} {:<8} {:>9} {:>6}  {}\n",
                                "operation", "shape", "dtype", "threads", "ms", "value", "unit",
                                "limit", "ratio", "limited by");
  for (const BenchRow& row : rows) {
    out += fmt::format("{:<34} {:<12} {:<5} {:>7} {:>10.3f} {:>9.3f} {:<8}", row.op, row.shape,
                       row.dtype, row.threads, row.seconds * 1e3, row.value, row.unit);
    // Rows that are limits themselves have no limit.
    if (row.limit > 0) {
      out += fmt::format(" {:>9.3f} {:>5.0f}%  {}", row.limit, row.ratio * 100, row.limit_kind);
    }
    out += '\n';
  }
  if (clock == Clock::kCpu) out += "clock: processor time of the one thread\n";
  return out;
}

std::vector<double> BestSeconds(Clock clock, int repetitions,
                                std::span<const std::function<void()>> functions) {
  std::vector<double> best(functions.size(), std::numeric_limits<double>::infinity());
  // Round 0 warms up caches, pages and clocks. The best of the other rounds was disturbed least; a
  // mean would also measure the other work of the machine.
  for (int round = 0; round <= repetitions; ++round) {
    for (std::size_t i = 0; i < functions.size(); ++i) {
      const Timer watch(clock);
      functions[i]();
      if (round > 0) best[i] = std::min(best[i], watch.seconds());
    }
  }
  return best;
}

}  // namespace qlora::bench
