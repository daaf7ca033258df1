#include "data/mismatched_rows.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "preference/preference_pair.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {

std::vector<MismatchedRow> MismatchedRows(const Dataset& dataset,
                                          std::span<const std::uint32_t> samples) {
  const std::int64_t n = std::ssize(samples);
  std::vector<MismatchedRow> rows;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t back = 1;
    while (back < n && dataset.prompt(samples[(i + n - back) % n]) == dataset.prompt(samples[i])) {
      ++back;
    }
    if (back >= n) {
      ThrowInvalidInput(
          "{}: the {} answers of a step have one prompt, and preference_loss kto compares answers "
          "to different prompts; set a larger gradient_accumulation_steps or "
          "per_device_train_batch_size, shuffle, or take preference_loss apo_zero_unpaired",
          dataset.Where(samples[i]), n);
    }
    rows.push_back({samples[i], samples[(i + n - back) % n]});
  }
  return rows;
}

VisitedSamples VisitedByEvaluation(const Dataset& dataset, bool mismatches) {
  VisitedSamples all;
  all.samples.resize(dataset.size());
  std::iota(all.samples.begin(), all.samples.end(), 0U);
  if (mismatches) all.mismatched = MismatchedRows(dataset, all.samples);
  return all;
}

Sample ReadMismatched(const Dataset& dataset, const MismatchedRow& row, std::int64_t max_length) {
  Sample sample = Mismatched(dataset.Get(row.prompt), dataset.Get(row.answer));
  if (std::ssize(sample.ids) > max_length) {
    sample.ids.resize(max_length);
    sample.labels.resize(max_length);
  }
  return sample;
}

std::uint64_t KeyOf(const Dataset& dataset, const MismatchedRow& row) {
  return MixBits(MixBits(dataset.key(row.prompt)) ^ dataset.key(row.answer));
}

std::int64_t LongestMismatched(const Dataset& dataset, std::int64_t max_length) {
  std::int64_t prompt = 0;
  std::int64_t answer = 0;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    prompt = std::max<std::int64_t>(prompt, dataset.first(i));
    answer = std::max<std::int64_t>(answer, dataset.length(i) - dataset.first(i));
  }
  return std::min(prompt + answer, max_length);
}

}  // namespace qlora
