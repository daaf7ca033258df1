#include "data/training_data.h"

#include <algorithm>
#include <utility>

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
  table.Add("append_eos", &append_eos, "end texts and completions with EOS where they do not");
  table.Add("prompt_template", &prompt_template,
            "prompt of a record with fields of your own, such as 'Q: {question} [[({hint}) ]]A:'; "
            "what is in [[ ]] is left out when its field is empty");
  table.Add("completion_template", &completion_template, "its completion, such as '{answer}'");
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
    data.sources.push_back(ParseDataSource(path, ParseRecordFormat(fields.dataset_format)));
  }
  data.max_length = ResolveMaxLength(fields, limits);
  data.over_long = ParseOverLong(fields.over_long);
  data.train_on_inputs = fields.train_on_inputs;
  data.append_eos = fields.append_eos;
  data.prompt_template = fields.prompt_template;
  data.completion_template = fields.completion_template;
  data.vocab_size = limits.vocab_size;
  return data;
}

DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits) {
  DataOptions data = ToDataOptions(fields.reading, paths, limits);
  data.index_folder = fields.dataset_prepared_path;
  return data;
}

TrainingData OpenTrainingData(const DataFields& fields, const DataLimits& limits,
                              std::uint64_t seed, const Tokenizer& tokenizer,
                              const ChatRenderer* chat, Context* context) {
  if (!fields.eval_dataset.empty() && fields.val_set_size > 0) {
    ThrowInvalidInput(
        "eval_dataset and val_set_size are both given; keep one: files to evaluate, or a part of "
        "dataset to hold out");
  }
  const auto open = [&](const std::vector<std::string>& paths) {
    return Dataset::Open(ToDataOptions(fields, paths, limits), tokenizer, chat, context);
  };
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
