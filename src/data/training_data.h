// The data of a run as the user named it: the training samples and the held-out samples.
#ifndef QLORA_DATA_TRAINING_DATA_H_
#define QLORA_DATA_TRAINING_DATA_H_

#include <cstdint>
#include <optional>

#include "data/data_options.h"
#include "data/dataset.h"
#include "qlora/data.h"

namespace qlora {

struct TrainingData {
  Dataset train;
  std::optional<Dataset> held_out;
  std::optional<Dataset> calibration = {};  // of decisions, for their temperatures
};

// What a part of a data set is held out for, which draws it by a seed of its own.
enum class SplitUse : std::uint8_t { kEvaluation, kCalibration };

// Holds out `size` records when it is 1 or more, otherwise that fraction of the records, rounded,
// at least one, each with all of its samples. Records of questions about one state are held out
// together, so that there may be some more. The seed draws them without replacement; both parts
// keep the order of the files. Errors: InvalidInput, naming the option, when a part would be empty.
TrainingData SplitDataset(const Dataset& dataset, double size, std::uint64_t seed,
                          SplitUse use = SplitUse::kEvaluation);

// Opens fields.dataset, and holds out fields.eval_dataset or fields.val_set_size of it (drawn by
// seed), or the evaluation files that WithFoundEvaluation finds. progress: as Dataset::Open, for
// each of the two in turn. recorded: the layout of the adapter that training continues. Errors:
// InvalidInput with file and line, or when both are given.
TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatTemplate* chat, Context* context,
                              const std::optional<PromptLayout>& recorded = {},
                              const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_DATA_TRAINING_DATA_H_
