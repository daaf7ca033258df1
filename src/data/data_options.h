// Translates the user's options of data into the form that this folder takes.
#ifndef QLORA_DATA_DATA_OPTIONS_H_
#define QLORA_DATA_DATA_OPTIONS_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/prompt_layout.h"
#include "prompt/record_format.h"

namespace qlora {

struct DataFields;
struct ReadingFields;

// The fate of a sample of more than max_length tokens.
enum class OverLong { kDrop, kTruncate, kError };
OverLong ParseOverLong(std::string_view name);  // drop, truncate, error

struct DataSource {
  std::filesystem::path path;
  RecordFormat format = RecordFormat::kAuto;
  double weight = 1;  // visits of each sample per epoch; epoch_order.h has the rule
};

// Parses "data.jsonl", or "data.jsonl:0.5" with a weight. A file of exactly that name wins. Errors:
// InvalidInput for an empty name.
DataSource ParseDataSource(std::string_view text, RecordFormat format = RecordFormat::kAuto);

// Returns the sources that `text` names: the files that FindDataFiles finds, each with the weight
// of `text`. Errors: InvalidInput as FindDataFiles, and for an empty name.
std::vector<DataSource> FindDataSources(std::string_view text,
                                        RecordFormat format = RecordFormat::kAuto);

struct DataOptions {
  std::vector<DataSource> sources;
  std::int64_t max_length = 2048;  // tokens
  OverLong over_long = OverLong::kDrop;
  // Texts, completions and last turns that do not end in EOS are given one.
  bool append_eos = true;

  // If false, prompts and everything that the assistant did not write are masked.
  bool train_on_inputs = false;
  // If false, every token of messages and sharegpt is trained on.
  bool assistant_only_loss = true;

  LayoutRules layout;  // of records with fields

  // The folder that keeps the index of each file on disk, for this run and later ones; empty: in
  // memory.
  std::filesystem::path index_folder;

  std::int64_t vocab_size = 0;  // rows of the model's embedding; 0: the tokenizer's size
};

// The model that reads the data, as far as data are concerned.
struct DataLimits {
  std::int64_t vocab_size = 0;               // rows of the embedding
  std::int64_t max_position_embeddings = 0;  // its context, in tokens
};

// Returns max_length, or its default for this model. Errors: InvalidInput when it is negative.
std::int64_t ResolveMaxLength(const ReadingFields& fields, const DataLimits& limits);

// Returns a warning when sequences of max_length exceed the model's context; "" otherwise.
std::string WarnOfLength(const ReadingFields& fields, const DataLimits& limits);

// recorded: the layout that an adapter was trained in, if one is applied or continued. Errors:
// InvalidInput for a value that is not one of the choices.
DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits,
                          const std::optional<PromptLayout>& recorded = {});
// paths: fields.dataset or fields.eval_dataset.
DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits,
                          const std::optional<PromptLayout>& recorded = {});

}  // namespace qlora

#endif  // QLORA_DATA_DATA_OPTIONS_H_
