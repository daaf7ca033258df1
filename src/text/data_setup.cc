#include "text/data_setup.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::int64_t kDefaultMaxLength = 2048;

}  // namespace

void ReadingFields::Declare(OptionTable& table) {
  table.Add("dataset_format", &dataset_format, "auto, or the name of a format", {"type"});
  table.Add("max_length", &max_length,
            "tokens of a sequence at most; 0: the context of the model, 2048 at most",
            {"max_seq_length", "sequence_len", "cutoff_len"});
  table.Choice("over_long", &over_long, {"drop", "truncate", "error"},
               "what happens to longer samples; they are counted in any case");
  table.Add("train_on_inputs", &train_on_inputs, "let the tokens of prompts count too");
}

void DataFields::Declare(OptionTable& table) {
  table.Section("Data");
  table.Add("dataset", &dataset, "training files, comma-separated", {"datasets", "data"});
  table.Add("eval_dataset", &eval_dataset, "held-out files", {"test_datasets", "eval_data"});
  table.Add("val_set_size", &val_set_size,
            "part of the training data to hold out: below 1 a share, from 1 a number of samples",
            {"val_size"});
  reading.Declare(table);
  table.Add("packing", &packing,
            "fill micro-batches to max_length with whole samples that do not see each other",
            {"sample_packing"});
  table.Add("shuffle", &shuffle, "visit samples in random order; false: in the order of the files");
  table.Add("dataset_prepared_path", &dataset_prepared_path,
            "folder that keeps the index of the data, for data larger than memory and for a quick "
            "start of later runs; default: in memory");
  chat.Declare(table);
}

std::int64_t ResolveMaxLength(const ReadingFields& fields, const DataLimits& limits) {
  if (fields.max_length < 0) {
    ThrowInvalidInput("max_length must be 0 or more, found {}", fields.max_length);
  }
  if (fields.max_length > 0) return fields.max_length;
  return std::min(kDefaultMaxLength, limits.max_position_embeddings);
}

std::string WarnOfLength(const ReadingFields& fields, const DataLimits& limits) {
  if (fields.max_length <= limits.max_position_embeddings) return {};
  return fmt::format(
      "max_length {} lies beyond the {} positions that this model was made for "
      "(max_position_embeddings); what it says there is of little use",
      fields.max_length, limits.max_position_embeddings);
}

DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits) {
  DataOptions data;
  for (const std::string& path : paths) {
    data.sources.push_back(ParseDataSource(path, ParseRowFormat(fields.dataset_format)));
  }
  data.max_length = ResolveMaxLength(fields, limits);
  data.over_long = ParseOverLong(fields.over_long);
  data.train_on_inputs = fields.train_on_inputs;
  data.vocab_size = limits.vocab_size;
  return data;
}

DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits) {
  DataOptions data = ToDataOptions(fields.reading, paths, limits);
  data.index_folder = fields.dataset_prepared_path;
  return data;
}

}  // namespace qlora
