// What the user says about the data.
#ifndef QLORA_DATA_DATA_OPTIONS_H_
#define QLORA_DATA_DATA_OPTIONS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

enum class RecordFormat {
  kAuto,              // by the keys of the first record
  kRaw,               // one long text, cut into windows of max_length tokens
  kText,              // {"text"}
  kPromptCompletion,  // {"prompt", "completion"}: texts, or lists of messages
  kInstruction,       // {"instruction", "input", "output"}, the form of Alpaca
  kTemplate,          // any fields, laid out by prompt_template and completion_template
  kShareGpt,          // {"conversations"}
  kMessages,          // {"messages"}
  kInputIds,          // {"input_ids", "labels"}: used as they are
};
std::string_view RecordFormatName(RecordFormat format);
// Errors: InvalidInput listing the names, which are auto, raw (txt), text, prompt_completion
// (completion), alpaca (instruction), template, sharegpt, messages (chat, openai) and input_ids
// (tokenized).
RecordFormat ParseRecordFormat(std::string_view name);

// What happens to a sample of more than max_length tokens.
enum class OverLong { kDrop, kTruncate, kError };
OverLong ParseOverLong(std::string_view name);  // drop, truncate, error

struct DataSource {
  std::filesystem::path path;
  RecordFormat format = RecordFormat::kAuto;
  double weight = 1;  // visits of each sample an epoch; data_order.h has the rule
};

// "data.jsonl", or "data.jsonl:0.5" with a weight. A file of exactly that name wins.
// Errors: InvalidInput for an empty name.
DataSource ParseDataSource(std::string_view text, RecordFormat format = RecordFormat::kAuto);

struct DataOptions {
  std::vector<DataSource> sources;
  std::int64_t max_length = 2048;  // tokens
  OverLong over_long = OverLong::kDrop;
  bool append_eos = true;  // to text and completions that do not end in EOS

  // Else prompts, and everything that the assistant did not write, are masked.
  bool train_on_inputs = false;

  // Both or none; data_template.h has the syntax.
  std::string prompt_template;
  std::string completion_template;

  // Where the index of each file is kept on disk, for this run and later ones; empty: in memory.
  std::filesystem::path index_folder;

  std::int64_t vocab_size = 0;  // rows of the model's embedding; 0: those of the tokenizer
};

}  // namespace qlora

#endif  // QLORA_DATA_DATA_OPTIONS_H_
