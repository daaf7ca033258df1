#include "plan/visited_samples.h"

#include <algorithm>
#include <set>
#include <utility>

namespace qlora {

VisitedSamples VisitedBy(const TrainOptions& options, const RunData& data, const DataCursor& from,
                         std::int64_t steps, bool mismatches) {
  BatchStream stream(data.train, data.stream, from);
  std::vector<bool> visited(data.train.size());
  std::set<std::pair<std::uint32_t, std::uint32_t>> known;
  VisitedSamples all;
  for (std::int64_t step = 0; step < steps; ++step) {
    // Once all samples are visited, later epochs have other mismatches alone.
    const bool done = std::ssize(all.samples) == data.train.size();
    if (done && !mismatches) break;
    const WindowPlan window = stream.PlanWindow(options.gradient_accumulation_steps);
    const std::vector<std::uint32_t> samples = window.AllSamples();
    for (const std::uint32_t sample : samples) {
      if (!visited[sample]) all.samples.push_back(sample);
      visited[sample] = true;
    }
    if (!mismatches) continue;
    for (const MismatchedRow& row : MismatchedRows(data.train, samples)) {
      if (known.emplace(row.prompt, row.answer).second) all.mismatched.push_back(row);
    }
  }
  std::ranges::sort(all.samples);
  return all;
}

}  // namespace qlora
