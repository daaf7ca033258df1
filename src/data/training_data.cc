#include "data/training_data.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/dataset_split.h"

namespace qlora {

// Both data sets are read with the same options, so that a loss means the same on both.
TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatRenderer* chat, Context* context,
                              const std::optional<PromptLayout>& recorded) {
  if (!fields.eval_dataset.empty() && fields.val_set_size > 0) {
    ThrowInvalidInput(
        "eval_dataset and val_set_size are both given; keep one: files to evaluate, or a part of "
        "dataset to hold out");
  }
  const auto open = [&](const std::vector<std::string>& paths) {
    return Dataset::Open(ToDataOptions(fields, paths, limits, recorded), tokenizer, chat, context);
  };
  // The split draws among the samples that were kept, so that its size is exact.
  TrainingData data{open(fields.dataset), std::nullopt};
  if (!fields.eval_dataset.empty()) {
    data.held_out = open(fields.eval_dataset);
  } else if (fields.val_set_size > 0) {
    DatasetSplit split = SplitDataset(data.train, fields.val_set_size, seed);
    data = {std::move(split.train), std::move(split.held_out)};
  }
  return data;
}

}  // namespace qlora
