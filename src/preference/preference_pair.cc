#include "preference/preference_pair.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {
namespace {

std::int64_t CommonTokens(const Sample& a, const Sample& b) {
  const auto ends = std::ranges::mismatch(a.ids, b.ids);
  return ends.in1 - a.ids.begin();
}

// Masks the tokens that texts without a prompt of their own share.
void MaskCommon(Sample& chosen, Sample& rejected) {
  const std::int64_t common = CommonTokens(chosen, rejected);
  if (common == 0) {
    ThrowInvalidInput(
        "chosen and rejected begin with different tokens, so that they have no prompt; expected "
        "texts that begin alike, or a field 'prompt'");
  }
  if (common == std::ssize(chosen.ids) || common == std::ssize(rejected.ids)) {
    if (chosen.ids == rejected.ids) return;  // counted as identical
    ThrowInvalidInput(
        "one of chosen and rejected is the beginning of the other, so that it has no answer; "
        "expected a field 'prompt', or texts that differ");
  }
  std::fill_n(chosen.labels.begin(), common, kIgnoreLabel);
  std::fill_n(rejected.labels.begin(), common, kIgnoreLabel);
}

void Append(const Sample& from, std::int64_t begin, Sample& to) {
  to.ids.insert(to.ids.end(), from.ids.begin() + begin, from.ids.end());
  to.labels.insert(to.labels.end(), from.labels.begin() + begin, from.labels.end());
}

}  // namespace

std::int64_t FirstTrained(const Sample& sequence) {
  const auto is_trained = [](std::int32_t label) { return label != kIgnoreLabel; };
  return std::ranges::find_if(sequence.labels, is_trained) - sequence.labels.begin();
}

Sample JoinPair(Sample chosen, Sample rejected, const PairLayout& layout) {
  if (layout.implicit) MaskCommon(chosen, rejected);
  if (CountSupervised(chosen) == 0 || CountSupervised(rejected) == 0) return {};
  const std::int64_t first = FirstTrained(chosen);
  const std::int64_t second = FirstTrained(rejected);
  Sample pair;
  if (layout.trains_text) {
    std::copy_n(chosen.ids.begin(), first, chosen.labels.begin());
    pair.text_targets = std::max<std::int64_t>(0, first - 1);  // nothing predicts the first token
  }
  const std::int64_t prompt = std::min({first, second, CommonTokens(chosen, rejected)});
  const std::int64_t shared =
      layout.share_prefix && !layout.trains_text ? std::max<std::int64_t>(0, prompt - 1) : 0;
  pair.ids.assign(chosen.ids.begin(), chosen.ids.begin() + shared);
  pair.labels.assign(shared, kIgnoreLabel);
  pair.branches.push_back(shared);
  Append(chosen, shared, pair);
  pair.branches.push_back(std::ssize(pair.ids));
  Append(rejected, shared, pair);
  return pair;
}

PairCut CutPair(Sample& chosen, Sample& rejected, std::int64_t length) {
  for (Sample* side : {&chosen, &rejected}) {
    if (std::ssize(side->ids) <= length) continue;
    if (FirstTrained(*side) >= length) return PairCut::kEmpty;
    side->ids.resize(length);
    side->labels.resize(length);
  }
  return chosen.ids == rejected.ids ? PairCut::kEqual : PairCut::kDifferent;
}

Sample Mismatched(const Sample& row, const Sample& other) {
  Sample sample = row;
  const std::int64_t prompt = FirstTrained(row);
  sample.ids.resize(prompt);
  sample.labels.resize(prompt);
  Append(other, FirstTrained(other), sample);
  return sample;
}

}  // namespace qlora
