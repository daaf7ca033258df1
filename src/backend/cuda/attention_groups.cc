#include "backend/cuda/attention_groups.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace qlora::cuda {

std::vector<AttentionSpan> WithRows(std::span<const AttentionSpan> spans) {
  std::vector<AttentionSpan> kept;
  std::ranges::copy_if(spans, std::back_inserter(kept),
                       [](const AttentionSpan& s) { return s.q_rows > 0; });
  return kept;
}

std::vector<std::span<const AttentionSpan>> GroupSpans(std::span<const AttentionSpan> spans,
                                                       const GroupLimits& limits) {
  std::vector<std::span<const AttentionSpan>> groups;
  while (!spans.empty()) {
    std::size_t count = 0;
    std::int64_t rows = 0;
    while (count < spans.size() && static_cast<std::int64_t>(count) < limits.sequences &&
           rows + spans[count].q_rows <= limits.rows) {
      rows += spans[count++].q_rows;
    }
    if (count == 0) return {};
    if (limits.powers_of_two) count = std::bit_floor(count);
    groups.push_back(spans.first(count));
    spans = spans.subspan(count);
  }
  return groups;
}

std::int64_t RowsIn(std::span<const AttentionSpan> spans) {
  std::int64_t rows = 0;
  for (const AttentionSpan& s : spans) rows += s.q_rows;
  return rows;
}

}  // namespace qlora::cuda
