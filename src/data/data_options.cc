#include "data/data_options.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/check.h"
#include "qlora/data.h"
#include "records/data_files.h"

namespace qlora {
namespace {

// Enough for most records. A context of 128k tokens as default would reserve memory for samples
// that nobody has.
constexpr std::int64_t kDefaultMaxLength = 2048;

}  // namespace

OverLong ParseOverLong(std::string_view name) {
  if (name == "drop") return OverLong::kDrop;
  if (name == "truncate") return OverLong::kTruncate;
  if (name == "error") return OverLong::kError;
  ThrowInvalidInput("over_long: expected drop, truncate or error, found '{}'", name);
}

// The name of a file may hold a colon: text behind the last colon is a weight only if all of it is
// a number and no file has the whole name.
DataSource ParseDataSource(std::string_view text, RecordFormat format) {
  DataSource source{.path = text, .format = format, .weight = 1};
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon != std::string_view::npos && !std::filesystem::exists(source.path, ignored)) {
    const std::string_view number = text.substr(colon + 1);
    double weight = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
    // All of it must be a number: "part:2b.jsonl" is a name.
    if (error == std::errc() && end == number.data() + number.size()) {
      source.weight = weight;
      source.path = text.substr(0, colon);
    }
  }
  if (source.path.empty()) ThrowInvalidInput("the name of a data file is empty");
  return source;
}

std::vector<DataSource> FindDataSources(std::string_view text, RecordFormat format) {
  const DataSource source = ParseDataSource(text, format);
  std::vector<DataSource> sources;
  for (std::filesystem::path& file : FindDataFiles(source.path)) {
    sources.push_back({.path = std::move(file), .format = format, .weight = source.weight});
  }
  return sources;
}

// Keys and aliases come from Hugging Face TRL, Axolotl and LLaMA-Factory.
void ReadingFields::Declare(OptionTable& table) {
  table.Add("dataset_format", &dataset_format,
            "format of the records: raw, text, prompt_completion, alpaca, sharegpt, messages, "
            "template or input_ids; auto: by the fields of the first record",
            {"type"});
  table.Add("max_length", &max_length,
            "maximum length of a sample in tokens; 0: the context of the model, at most 2048",
            {"max_seq_length", "sequence_len", "cutoff_len"});
  table.Choice(
      "over_long", &over_long, {"drop", "truncate", "error"},
      "what to do with samples longer than max_length; the report counts them in any case");
  table.Add("train_on_inputs", &train_on_inputs,
            "train on prompts too, not only on completions and on the assistant's turns");
  table.Add("assistant_only_loss", &assistant_only_loss,
            "of conversations, train on the assistant's turns alone; false: on every token");
  table.Add("append_eos", &append_eos,
            "append EOS to texts, completions and last turns that do not end in EOS");
  table.Choice("prompt_layout", &prompt_layout, {"auto", "chat", "text", "instruction_answer"},
               "layout of prompts and answers that are not conversations: chat (through the chat "
               "template), text (Alpaca's text; prompt and completion as they are) or "
               "instruction_answer (Alpaca as 'Instruction: ... Answer:'); auto: chat if the model "
               "has a chat template, else text");
  table.Add("prompt_template", &prompt_template,
            "prompt template, filled from the record's fields, such as 'Q: {question} [[({hint}) "
            "]]A:'; a part in [[ ]] is left out when its field is empty");
  table.Add("completion_template", &completion_template,
            "completion template, filled from the record's fields, such as '{answer}'");
}

void DataFields::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath("dataset", &dataset,
                "training files, folders and patterns such as data/*.jsonl, separated by commas; "
                "FILE:2 visits its samples twice per epoch",
                {"datasets", "data"});
  table.AddPath("eval_dataset", &eval_dataset,
                "evaluation files, folders and patterns, separated by commas",
                {"test_datasets", "eval_data"});
  table.Add("val_set_size", &val_set_size,
            "training samples held out for evaluation: below 1: a fraction; 1 or more: a count",
            {"val_size"});
  reading.Declare(table);
  table.Add("packing", &packing,
            "pack whole samples into micro-batches of max_length tokens; samples do not attend to "
            "each other",
            {"sample_packing"});
  table.Add("shuffle", &shuffle,
            "visit the samples in random order; false: in the order of the files");
  table.AddPath(
      "dataset_prepared_path", &dataset_prepared_path,
      "folder for the index of the data, so that later runs start sooner and data may be larger "
      "than memory; default: index in memory");
  chat.Declare(table);
}

std::int64_t ResolveMaxLength(const ReadingFields& fields, const DataLimits& limits) {
  if (fields.max_length < 0) {
    ThrowInvalidInput("max_length must be 0 or more, found {}", fields.max_length);
  }
  // A length that the user names is kept even above the context; WarnOfLength tells the
  // consequence.
  if (fields.max_length > 0) return fields.max_length;
  return std::min(kDefaultMaxLength, limits.max_position_embeddings);
}

// A warning only: rotary positions can be computed for any length, and scaled models are trained
// so.
std::string WarnOfLength(const ReadingFields& fields, const DataLimits& limits) {
  if (fields.max_length <= limits.max_position_embeddings) return {};
  return fmt::format(
      "max_length {} exceeds the {} positions that this model was trained for "
      "(max_position_embeddings); expect poor results beyond them",
      fields.max_length, limits.max_position_embeddings);
}

DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits, const std::optional<PromptLayout>& recorded) {
  DataOptions data;
  const RecordFormat format = ParseRecordFormat(fields.dataset_format);
  for (const std::string& path : paths) {
    // Every file of a folder or pattern has a separate report line and index, and the weight that
    // the user gave to all of them.
    for (DataSource& source : FindDataSources(path, format)) {
      data.sources.push_back(std::move(source));
    }
  }
  data.max_length = ResolveMaxLength(fields, limits);
  data.over_long = ParseOverLong(fields.over_long);
  data.train_on_inputs = fields.train_on_inputs;
  data.assistant_only_loss = fields.assistant_only_loss;
  data.append_eos = fields.append_eos;
  data.layout = {.choice = ParseLayoutChoice(fields.prompt_layout),
                 .prompt_template = fields.prompt_template,
                 .completion_template = fields.completion_template,
                 .recorded = recorded};
  // The size of the embedding, not of the tokenizer: models have more rows than there are tokens,
  // and ids of prepared data may use them.
  data.vocab_size = limits.vocab_size;
  return data;
}

// Converts as above, with the index on disk: only data that are visited again profit from an index.
DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits, const std::optional<PromptLayout>& recorded) {
  DataOptions data = ToDataOptions(fields.reading, paths, limits, recorded);
  data.index_folder = fields.dataset_prepared_path;
  return data;
}

}  // namespace qlora
