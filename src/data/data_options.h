// Translates the user's options of data into the form that this folder takes.
#ifndef QLORA_DATA_DATA_OPTIONS_H_
#define QLORA_DATA_DATA_OPTIONS_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_slice.h"
#include "decision/decision_labels.h"
#include "decision/decision_options.h"
#include "decision/decision_record.h"
#include "prompt/prompt_layout.h"
#include "prompt/record_format.h"
#include "qlora/data.h"
#include "records/data_files.h"
#include "records/reading_limits.h"

namespace qlora {

struct DataFields;
struct ReadingFields;

// The fate of a sample of more than max_length tokens.
enum class OverLong { kDrop, kTruncate, kError };
OverLong ParseOverLong(std::string_view name);  // drop, truncate, error

// The fate of a record that cannot be read or laid out.
enum class BadRecords { kError, kDrop };
BadRecords ParseBadRecords(std::string_view name);  // error, drop

// The assistant's turns of a conversation that are trained on.
enum class TrainTurns {
  kAll,   // of one sample
  kLast,  // the last turn of one sample that is to be learned
  kEach,  // a sample for each turn, which ends with this turn and trains it alone
};
TrainTurns ParseTrainTurns(std::string_view name);  // all, last, each

struct DataSource {
  std::filesystem::path path;
  RecordFormat format = RecordFormat::kAuto;
  double weight = 1;  // visits of each sample per epoch; epoch_order.h has the rule
  DataSlice slice = {};
  int descriptor = -1;  // of GivenRecords; below 0: the file of this path
};

// Parses "data.jsonl", "data.jsonl:0.5" with a weight, "data.jsonl[:1000]" with a slice, or
// "data.jsonl[:1000]:0.5" with both. A file of exactly that name wins. Errors: InvalidInput for an
// empty name.
DataSource ParseDataSource(std::string_view text, RecordFormat format = RecordFormat::kAuto);

// The sources that a text names, and the other files that were found.
struct FoundSources {
  std::vector<DataSource> sources;  // each with the weight and the slice of the text
  DataFiles files;
};

// Returns what `text` names, as FindDataFiles finds it. Errors: InvalidInput as FindDataFiles, and
// for an empty name.
FoundSources FindSources(std::string_view text, RecordFormat format, DataPurpose purpose);

// Returns the options with eval_dataset set to the evaluation files that lie beside the training
// files of `dataset`, where the options name no data for evaluation. Errors: as FindDataFiles.
DataFields WithFoundEvaluation(DataFields fields);

// Evaluation reads each sample once. Errors: InvalidInput for a source with a weight.
void CheckUnweighted(const std::vector<DataSource>& sources, std::string_view option);

// How records of questions become prompts (src/decision).
struct DecisionOptions {
  // plain, chat, a file; "": that of the layout, or by the model
  std::string decision_template = {};
  PromptSpace space = PromptSpace::kOfPrompt;
  DecisionFields fields = {};
  std::vector<QuestionType> types = {kQuestionTypes.begin(), kQuestionTypes.end()};
  bool soft_targets = true;
  bool shuffles_options = false;  // of choices, by seed and record
  std::uint64_t seed = 0;
  std::int64_t max_options = 26;
  bool share_prefix = true;
  std::vector<std::string> given = {};  // the options that say nothing about other records
};

// What decides the samples of a record. Each file keeps a copy.
struct EncodingOptions {
  std::int64_t max_length = 2048;  // tokens
  OverLong over_long = OverLong::kDrop;
  BadRecords bad_records = BadRecords::kError;
  std::vector<std::string> ignore_fields;  // of records
  // Texts, completions and last turns that do not end in EOS are given one.
  bool append_eos = true;

  // If false, prompts and everything that the assistant did not write are masked.
  bool train_on_inputs = false;
  // If false, every token of messages and sharegpt is trained on.
  bool assistant_only_loss = true;
  TrainTurns train_turns = TrainTurns::kAll;

  LayoutRules layout;  // of records with fields
  DecisionOptions decision;
  PreferenceReading preference;

  std::int64_t vocab_size = 0;  // rows of the model's embedding; 0: the tokenizer's size
};

struct DataOptions : EncodingOptions {
  std::int64_t context = 0;  // of the model, in tokens; 0: unknown

  // True when it is the model that reads no more than max_length.
  bool max_length_is_context() const { return max_length == context; }
  std::vector<DataSource> sources;
  // Of the report: what was found and not read, and files that are read although their names say
  // that they are held out.
  std::vector<std::string> notes;
  std::vector<std::string> named_held_out;
  // The folder that keeps the index of each file on disk, for this run and later ones; empty: in
  // memory.
  std::filesystem::path index_folder;
  ReadingLimits reading;
};

// The model that reads the data, and the memory to do so, as far as data are concerned.
struct DataLimits {
  std::int64_t vocab_size = 0;               // rows of the embedding
  std::int64_t max_position_embeddings = 0;  // its context, in tokens
  ReadingLimits reading = {};
};

// Returns max_length, or its default for this model. Errors: InvalidInput when it is negative.
std::int64_t ResolveMaxLength(const ReadingFields& fields, const DataLimits& limits);

// Returns a warning when sequences of max_length exceed the model's context; "" otherwise.
std::string WarnOfLength(const ReadingFields& fields, const DataLimits& limits);

// recorded: the layout that an adapter was trained in, if one is applied or continued. Errors:
// InvalidInput for a value that is not one of the choices.
DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits,
                          const std::optional<PromptLayout>& recorded = {},
                          DataPurpose purpose = DataPurpose::kTraining);
// Converts fields.dataset or, for evaluation, fields.eval_dataset.
DataOptions ToDataOptions(const DataFields& fields, DataPurpose purpose, const DataLimits& limits,
                          const std::optional<PromptLayout>& recorded = {});

}  // namespace qlora

#endif  // QLORA_DATA_DATA_OPTIONS_H_
