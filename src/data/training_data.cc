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
  const auto size = static_cast<double>(dataset.size());
  // At least one sample: otherwise a small fraction of a small set would silently hold nothing out.
  const double wanted =
      val_set_size >= 1 ? val_set_size : std::max(1.0, std::round(val_set_size * size));
  if (!(val_set_size > 0) || wanted != std::floor(wanted) || wanted >= size) {
    ThrowInvalidInput(
        "val_set_size: expected a fraction below 1 or a number of samples below {}, the size of "
        "the data set, found {}",
        dataset.size(), val_set_size);
  }
  std::vector<std::uint32_t> order =
      Permutation(dataset.size(), MakeKey(seed, RandomPlace::kShuffle, kSplitDetail));
  const auto held_out_end = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  // Both parts in the order of the files: reading goes forward through each file, and shuffling is
  // the business of the epochs.
  std::sort(order.begin(), held_out_end);
  std::sort(held_out_end, order.end());
  return {.train = dataset.Subset({held_out_end, order.end()}),
          .held_out = dataset.Subset({order.begin(), held_out_end})};
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
    return Dataset::Open(ToDataOptions(all, purpose, limits, recorded), tokenizer, chat, context,
                         progress);
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
