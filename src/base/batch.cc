#include "base/batch.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {
namespace {

// Adds a sample as the next sequence. Row t predicts token t + 1, so the targets are the labels
// moved by one, and the last row predicts nothing:
//
//   ids       a  b  c  d        labels    -  -  c  d
//   targets   -  c  d  -        (-: kIgnoreLabel)
void Append(const Sample& sample, Batch& batch) {
  QLORA_DCHECK(!sample.ids.empty() && sample.ids.size() == sample.labels.size());
  const auto length = static_cast<std::int32_t>(sample.ids.size());
  batch.ids.insert(batch.ids.end(), sample.ids.begin(), sample.ids.end());
  batch.targets.insert(batch.targets.end(), sample.labels.begin() + 1, sample.labels.end());
  batch.targets.push_back(kIgnoreLabel);
  for (std::int32_t t = 0; t < length; ++t) batch.positions.push_back(t);
  batch.sequence_begin.push_back(batch.rows());
}

}  // namespace

std::int64_t CountSupervised(const Sample& sample) {
  if (sample.labels.empty()) return 0;
  return std::count_if(sample.labels.begin() + 1, sample.labels.end(),
                       [](std::int32_t label) { return label != kIgnoreLabel; });
}

std::int64_t Batch::supervised() const {
  return std::count_if(targets.begin(), targets.end(),
                       [](std::int32_t target) { return target != kIgnoreLabel; });
}

Batch MakeBatch(std::span<const Sample* const> samples) {
  Batch batch;
  batch.sequence_begin.push_back(0);
  for (const Sample* sample : samples) Append(*sample, batch);
  return batch;
}

Batch MakeBatch(std::span<const Sample> samples) {
  Batch batch;
  batch.sequence_begin.push_back(0);
  for (const Sample& sample : samples) Append(sample, batch);
  return batch;
}

}  // namespace qlora
