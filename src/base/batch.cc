#include "base/batch.h"

#include <algorithm>
#include <utility>

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
  const std::int64_t first = batch.rows();
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t of, std::int64_t shift) {
    for (std::int64_t t = begin; t < end; ++t) {
      batch.ids.push_back(sample.ids[t]);
      batch.targets.push_back(t + 1 < end ? sample.labels[t + 1] : kIgnoreLabel);
      batch.positions.push_back(static_cast<std::int32_t>(t - shift));
    }
    batch.prefix.push_back(of);
    batch.sequence_begin.push_back(batch.rows());
  };
  const std::int64_t length = std::ssize(sample.ids);
  const std::int64_t shared = sample.branches.empty() ? length : sample.branches.front();
  const std::int64_t prefix = shared > 0 ? batch.sequences() : -1;
  if (shared > 0) add(0, shared, -1, 0);
  for (std::size_t b = 0; b < sample.branches.size(); ++b) {
    const std::int64_t begin = sample.branches[b];
    const bool last = b + 1 == sample.branches.size();
    add(begin, last ? length : sample.branches[b + 1], prefix, begin - shared);
  }
  for (Choice choice : sample.choices) {
    choice.row += first;
    const auto likeliest = std::ranges::max_element(choice.targets);
    batch.targets[choice.row] = choice.labels[likeliest - choice.targets.begin()];
    batch.choices.push_back(std::move(choice));
  }
  batch.sample_begin.push_back(batch.sequences());
  batch.desirable.push_back(sample.desirable ? 1 : 0);
  batch.text_targets.push_back(sample.text_targets);
}

}  // namespace

std::int64_t CountSupervised(const Sample& sample) {
  const auto is_trained = [&](std::int64_t t) { return sample.labels[t] != kIgnoreLabel; };
  std::int64_t count = std::ssize(sample.choices);
  for (std::int64_t t = 1; t < std::ssize(sample.labels); ++t) count += is_trained(t);
  for (const std::int64_t branch : sample.branches) count -= branch > 0 && is_trained(branch);
  return count;
}

std::int64_t CountOfFirst(const Sample& sample) {
  const std::int64_t length = std::ssize(sample.ids);
  const std::int64_t begin = sample.branches.empty() ? 0 : sample.branches[0];
  const std::int64_t end = sample.branches.size() > 1 ? sample.branches[1] : length;
  std::int64_t count = 0;
  if (!sample.desirable) return 0;
  for (std::int64_t t = begin + 1; t < end; ++t) count += sample.labels[t] != kIgnoreLabel;
  return count;
}

std::int64_t LongestSequence(const Sample& sample) {
  const std::int64_t length = std::ssize(sample.ids);
  if (sample.branches.empty()) return length;
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < sample.branches.size(); ++b) {
    const std::int64_t end = b + 1 < sample.branches.size() ? sample.branches[b + 1] : length;
    longest = std::max(longest, end - sample.branches[b]);
  }
  return sample.branches.front() + longest;
}

std::int64_t UnfoldedRows(const Sample& sample) {
  const std::int64_t length = std::ssize(sample.ids);
  if (sample.branches.empty()) return length;
  return length + std::ssize(sample.branches) * sample.branches.front();
}

std::int64_t Batch::prefix_rows(std::int64_t s) const {
  return prefix.empty() || prefix[s] < 0
             ? 0
             : sequence_begin[prefix[s] + 1] - sequence_begin[prefix[s]];
}

std::int64_t Batch::unfolded_rows() const {
  std::int64_t copies = 0;
  for (std::int64_t s = 0; s < sequences(); ++s) copies += prefix_rows(s);
  return copies == 0 ? 0 : rows() + copies;
}

std::int64_t Batch::supervised() const {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target != kIgnoreLabel; });
}

Batch MakeBatch(std::span<const Sample* const> samples) {
  Batch batch;
  batch.sequence_begin.push_back(0);
  batch.sample_begin.push_back(0);
  for (const Sample* sample : samples) Append(*sample, batch);
  return batch;
}

Batch MakeBatch(std::span<const Sample> samples) {
  Batch batch;
  batch.sequence_begin.push_back(0);
  batch.sample_begin.push_back(0);
  for (const Sample& sample : samples) Append(sample, batch);
  return batch;
}

}  // namespace qlora
