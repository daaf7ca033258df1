#include "data/training_data.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/epoch_order.h"

namespace qlora {
namespace {

// The shuffle of no epoch has this key.
constexpr std::uint64_t kSplitDetail = (std::uint64_t{1} << 48) - 1;

}  // namespace

TrainingData SplitDataset(const Dataset& dataset, double val_set_size, std::uint64_t seed) {
  // The turns of one conversation, where each is a sample, stay together: a turn that is held out
  // begins with the text of those before it.
  const std::vector<std::uint32_t> firsts = dataset.FirstsOfRecords();
  const std::int64_t records = std::ssize(firsts);
  const auto size = static_cast<double>(records);
  // At least one record: otherwise a small fraction of a small set would silently hold nothing out.
  const double wanted =
      val_set_size >= 1 ? val_set_size : std::max(1.0, std::round(val_set_size * size));
  if (!(val_set_size > 0) || wanted != std::floor(wanted) || wanted >= size) {
    ThrowInvalidInput(
        "val_set_size: expected a fraction below 1 or a number of records below {}, the size of "
        "the data set, found {}",
        records, val_set_size);
  }
  std::vector<std::uint32_t> order =
      Permutation(records, MakeKey(seed, RandomPlace::kShuffle, kSplitDetail));
  const auto held_out_end = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  // Both parts in the order of the files: reading goes forward through each file, and shuffling is
  // the business of the epochs.
  std::sort(order.begin(), held_out_end);
  std::sort(held_out_end, order.end());
  const auto samples_of = [&](auto begin, auto end) {
    std::vector<std::uint32_t> samples;
    for (; begin != end; ++begin) {
      const std::int64_t next = *begin + 1;
      const std::int64_t behind = next < records ? firsts[next] : dataset.size();
      for (std::int64_t i = firsts[*begin]; i < behind; ++i) {
        samples.push_back(static_cast<std::uint32_t>(i));
      }
    }
    return samples;
  };
  return {.train = dataset.Subset(samples_of(held_out_end, order.end())),
          .held_out = dataset.Subset(samples_of(order.begin(), held_out_end))};
}

// Both data sets are read with the same options, so that a loss means the same on both.
TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatTemplate* chat, Context* context,
                              const std::optional<PromptLayout>& recorded,
                              const ProgressFn& progress) {
  if (!fields.eval_dataset.empty() && fields.val_set_size > 0) {
    ThrowInvalidInput(
        "eval_dataset and val_set_size are both given; keep one: files to evaluate, or a part of "
        "dataset to hold out");
  }
  const DataFields all = WithFoundEvaluation(fields);
  const auto open = [&](DataPurpose purpose) {
    DataOptions options = ToDataOptions(all, purpose, limits, recorded);
    options.decision.seed = seed;
    return Dataset::Open(options, tokenizer, chat, context, progress);
  };
  // The split draws among the samples that were kept, so that its size is exact.
  TrainingData data{open(DataPurpose::kTraining), std::nullopt};
  if (!all.eval_dataset.empty()) {
    for (const std::string& path : all.eval_dataset) {
      CheckUnweighted({ParseDataSource(path)}, "eval_dataset");
    }
    data.held_out = open(DataPurpose::kEvaluation);
  } else if (fields.val_set_size > 0) {
    data = SplitDataset(data.train, fields.val_set_size, seed);
  }
  return data;
}

}  // namespace qlora
