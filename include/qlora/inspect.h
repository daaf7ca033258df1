// Describes a file or folder without loading it: models, adapters, GGUF files, data sets.
#ifndef QLORA_INSPECT_H_
#define QLORA_INSPECT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/train_options.h"

namespace qlora {

struct Inspection {
  std::string text;  // for people
  std::string json;  // one JSON object
};

// path: a Hugging Face model directory (or org/name in the local cache), a PEFT adapter directory,
// a .gguf file, or data (IsData), as InspectRecords. Errors: InvalidInput for anything else, and
// for damaged files.
Inspection Inspect(const std::string& path);

// True for a file with the extension of data that is no part of a model, and for a folder without a
// model that holds such files.
bool IsData(const std::string& path);

// Describes the files of `fields.dataset`, read with these options, without a model: format,
// fields, lengths in characters, records that cannot be read, the first record. Errors:
// InvalidInput for files without records, and for options that training refuses.
Inspection InspectRecords(const DataFields& fields);

// The training options that affect how data is read.
struct DataInspection {
  std::string model;  // whose tokenizer reads the data
  DataFields data;
  std::vector<std::string> preference_loss;  // which reads pairs, or answers with labels
  std::int64_t per_device_train_batch_size = TrainOptions().per_device_train_batch_size;
  std::int64_t seed = TrainOptions().seed;
};

// Describes a data set as the trainer will see it: counts, lengths, dropped samples, and the first
// `samples` samples with trained and masked tokens marked (by colour, or by brackets). Errors:
// InvalidInput with file and line, as Train. reading: as PlanTraining.
Inspection InspectData(Context& context, const DataInspection& options, std::int64_t samples,
                       bool color, const ProgressFn& reading = {});

}  // namespace qlora

#endif  // QLORA_INSPECT_H_
