// From what users say of their data to what a Dataset is opened with.
#ifndef QLORA_DATA_TRAINING_DATA_H_
#define QLORA_DATA_TRAINING_DATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "qlora/data.h"

namespace qlora {

// The model that reads the data, as far as data are concerned.
struct DataLimits {
  std::int64_t vocab_size = 0;               // rows of the embedding
  std::int64_t max_position_embeddings = 0;  // its context, in tokens
};

// max_length, or its default for this model. Errors: InvalidInput when it is negative.
std::int64_t ResolveMaxLength(const ReadingFields& fields, const DataLimits& limits);

// A warning when sequences of max_length lie beyond the model's context; "" otherwise.
std::string WarnOfLength(const ReadingFields& fields, const DataLimits& limits);

// Errors: InvalidInput for a value that is none of the choices.
DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits);
// paths: fields.dataset or fields.eval_dataset.
DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits);

struct TrainingData {
  Dataset train;
  std::optional<Dataset> held_out;
};

// Opens fields.dataset, and holds out fields.eval_dataset or fields.val_set_size of it (drawn by
// seed). Errors: InvalidInput with file and line, or when both are given.
TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatRenderer* chat, Context* context);

}  // namespace qlora

#endif  // QLORA_DATA_TRAINING_DATA_H_
