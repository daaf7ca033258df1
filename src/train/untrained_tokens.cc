#include "train/untrained_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "base/check.h"
#include "model/untrained_rows.h"

namespace qlora {

std::string WarnOfUntrainedTokens(const Dataset& train, Memory& memory, const WeightView& head) {
  constexpr std::int64_t kSamples = 1000;
  constexpr double kFew = 0.01;  // of the trained tokens
  std::map<std::int32_t, std::int64_t> counts;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < std::min(train.size(), kSamples); ++i) {
    for (const std::int32_t label : train.Get(i).labels) {
      if (label < 0) continue;
      ++counts[label];
      ++total;
    }
  }
  std::vector<std::int32_t> ids;
  for (const auto& [id, count] : counts) ids.push_back(id);
  std::int64_t lost = 0;
  const std::vector<std::int32_t> untrained = FindUntrainedRows(memory, head, ids);
  for (const std::int32_t id : untrained) lost += counts[id];
  const double share =
      static_cast<double>(lost) / static_cast<double>(std::max<std::int64_t>(total, 1));
  if (share < kFew) return "";
  return fmt::format(
      "{:.0f} % of the trained tokens ({} of {} different ones, such as token {}) are ones that "
      "the base never learned to write: their rows in lm_head are all alike, so that the loss "
      "stands still; modules_to_save embed_tokens,lm_head trains them, or take a base that knows "
      "these texts, or a chat template without such tokens",
      100 * share, untrained.size(), ids.size(), untrained.front());
}

}  // namespace qlora
