#include "data/data_options.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "decision/decision_wire.h"
#include "qlora/data.h"
#include "records/data_files.h"

namespace qlora {
namespace {

// Enough for most records. A context of 128k tokens as default would reserve memory for samples
// that nobody has.
constexpr std::int64_t kDefaultMaxLength = 2048;

// Returns the records that the program has given by this name, or null.
const GivenRecords* FindGiven(const ReadingFields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields.given, name, &GivenRecords::name);
  return found == fields.given.end() ? nullptr : &*found;
}

}  // namespace

OverLong ParseOverLong(std::string_view name) {
  if (name == "drop") return OverLong::kDrop;
  if (name == "truncate") return OverLong::kTruncate;
  if (name == "error") return OverLong::kError;
  ThrowInvalidInput("over_long: expected drop, truncate or error, found '{}'", name);
}

BadRecords ParseBadRecords(std::string_view name) {
  if (name == "error") return BadRecords::kError;
  if (name == "drop") return BadRecords::kDrop;
  ThrowInvalidInput("bad_records: expected error or drop, found '{}'", name);
}

TrainTurns ParseTrainTurns(std::string_view name) {
  if (name == "all") return TrainTurns::kAll;
  if (name == "last") return TrainTurns::kLast;
  if (name == "each") return TrainTurns::kEach;
  ThrowInvalidInput("train_turns: expected all, last or each, found '{}'", name);
}

// The name of a file may hold a colon: text behind the last colon is a weight only if all of it is
// a number and no file has the whole name. So may it end in a slice.
DataSource ParseDataSource(std::string_view text, RecordFormat format) {
  DataSource source{.path = text, .format = format, .weight = 1};
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  const auto is_file = [&] { return std::filesystem::exists(source.path, ignored); };
  if (colon != std::string_view::npos && !is_file()) {
    const std::string_view number = text.substr(colon + 1);
    // All of it must be a number: "part:2b.jsonl" is a name.
    if (const auto weight = ParseNumber<double>(number)) {
      source.weight = *weight;
      source.path = text.substr(0, colon);
    }
  }
  if (std::string name = source.path.string(); !is_file()) {
    if (const std::optional<DataSlice> slice = TakeSlice(name)) {
      source.slice = *slice;
      source.path = name;
    }
  }
  if (source.path.empty()) ThrowInvalidInput("the name of a data file is empty");
  return source;
}

FoundSources FindSources(std::string_view text, RecordFormat format, DataPurpose purpose) {
  const DataSource source = ParseDataSource(text, format);
  FoundSources found;
  found.files =
      FindDataFiles(source.path, {.purpose = purpose, .all_as_text = format == RecordFormat::kRaw});
  for (const std::filesystem::path& file : found.files.files) {
    found.sources.push_back(
        {.path = file, .format = format, .weight = source.weight, .slice = source.slice});
  }
  return found;
}

DataFields WithFoundEvaluation(DataFields fields) {
  if (!fields.eval_dataset.empty() || fields.val_set_size != 0) return fields;
  const RecordFormat format = ParseRecordFormat(fields.reading.dataset_format);
  for (const std::string& text : fields.dataset) {
    if (FindGiven(fields.reading, text) != nullptr) continue;
    const DataFiles found = FindSources(text, format, DataPurpose::kTraining).files;
    for (const std::filesystem::path& path : found.evaluation) {
      fields.eval_dataset.push_back(path.string());
    }
  }
  return fields;
}

void CheckUnweighted(const std::vector<DataSource>& sources, std::string_view option) {
  for (const DataSource& source : sources) {
    if (source.weight == 1) continue;
    ThrowInvalidInput(
        "{}: {} has the weight {}, but evaluation reads each sample once; for a part of the "
        "records write {}[:50%]",
        option, source.path.string(), source.weight, source.path.string());
  }
}

// Keys and aliases come from Hugging Face TRL, Axolotl and LLaMA-Factory.
void ReadingFields::Declare(OptionTable& table) {
  table.Add("dataset_format", &dataset_format,
            "format of the records: raw, text, prompt_completion, alpaca, sharegpt, messages, "
            "template, input_ids or decision; auto: by the fields of the first record",
            {"type"});
  table.Add("max_length", &max_length,
            "maximum length of a sample in tokens; 0: the context of the model, at most 2048",
            {"max_seq_length", "sequence_len", "cutoff_len"});
  table.Choice(
      "over_long", &over_long, {"drop", "truncate", "error"},
      "what to do with samples longer than max_length; the report counts them in any case");
  table.Choice("bad_records", &bad_records, {"error", "drop"},
               "what to do with records that cannot be read or laid out: error, or drop them; the "
               "report counts them and shows the first");
  table.Add("train_on_inputs", &train_on_inputs,
            "train on prompts too, not only on completions and on the assistant's turns");
  table.Add("assistant_only_loss", &assistant_only_loss,
            "of conversations, train on the assistant's turns alone; false: on every token");
  table.Choice("train_turns", &train_turns, {"all", "last", "each"},
               "of conversations, the assistant's turns that are trained on: all, the last one "
               "alone, or each in a sample of its own that ends with it");
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
  table.Add("ignore_fields", &ignore_fields,
            "fields of records that are read as if they were not there, separated by commas",
            {"remove_columns"});
}

void DecisionReading::Declare(OptionTable& table) {
  table.Section("Decisions");
  table.AddPath("decision_template", &decision_template,
                "prompts of questions: plain, chat (the model's chat template), or a Jinja file; "
                "default: chat if the model has a chat template, else plain");
  table.Add("question_types", &question_types,
            "types of questions that are read; others are left out");
  table.Add("soft_targets", &soft_targets,
            "read answers with probabilities as they are; false: as the most likely option");
  table.Choice("option_order", &option_order, {"auto", "given", "shuffle"},
               "order of the options of a choice in training; auto: shuffle. Evaluations have the "
               "given one");
  table.Add("max_options", &max_options,
            "options of a choice in training, at most; others than the answer are left out; 26: "
            "more, which letters cannot label, are refused");
  table.Add("share_prefix", &share_prefix,
            "compute the tokens that the questions of a record begin with once");
  table.Add("text_column", &text_column, "field with the text, of tables of texts and labels");
  table.Add("label_column", &label_column, "field with the label");
  table.Add("label_names", &label_names, "names of the labels 0, 1 ...");
  table.Add("instructions", &instructions, "the question that the label answers");
}

void DataFields::Declare(OptionTable& table) {
  table.Section("Data");
  table.AddPath(
      "dataset", &dataset,
      "training files, folders and patterns such as data/*.jsonl, separated by commas; files of a "
      "folder that are named test or valid are not trained on; FILE:2 visits its samples twice per "
      "epoch, FILE[:1000] and FILE[:10%] are its first records",
      {"datasets", "data"});
  table.AddPath("eval_dataset", &eval_dataset,
                "evaluation files, folders and patterns, separated by commas; default: the files "
                "named valid, validation, dev or eval in the folders of dataset",
                {"test_datasets", "eval_data"});
  table.Add("val_set_size", &val_set_size,
            "training records held out for evaluation: below 1: a fraction; 1 or more: a count",
            {"val_size"});
  table.AddPath("calibration_dataset", &calibration_dataset,
                "of decisions: files that temperatures are fitted to after training");
  table.Add("calibration_size", &calibration_size,
            "of decisions: training records held out to fit temperatures to: below 1: a fraction; "
            "1 or more: a count");
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
  reading.decision.Declare(table);
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

namespace {

// Returns "set: held out for evaluation: valid.jsonl; left out: test.jsonl (test data)", or "".
// evaluated: the files that are evaluated.
std::string DescribeFound(const std::string& text, const DataFiles& found,
                          const std::set<std::string>& evaluated) {
  std::vector<std::string> held_out;
  // By the reason, in the order of the files.
  std::vector<std::pair<std::string_view, std::vector<std::string>>> left_out;
  const auto leave_out = [&left_out](std::string_view reason, std::string name) {
    auto place = std::find_if(left_out.begin(), left_out.end(),
                              [&](const auto& entry) { return entry.first == reason; });
    if (place == left_out.end()) place = left_out.insert(place, {reason, {}});
    place->second.push_back(std::move(name));
  };
  for (const std::filesystem::path& path : found.evaluation) {
    evaluated.contains(path.string()) ? held_out.push_back(path.filename().string())
                                      : leave_out("evaluation data", path.filename().string());
  }
  for (const LeftOut& file : found.left_out) leave_out(file.reason, file.name);
  std::string line;
  if (!held_out.empty()) line = "; held out for evaluation: " + ListOfNames(held_out);
  for (const auto& [reason, names] : left_out) {
    line += fmt::format("; not read: {} ({})", ListOfNames(names), reason);
  }
  return line.empty() ? "" : Printable(text + ": " + line.substr(2));
}

// A question that is asked about a table of texts.
bool AsksOfTables(const DecisionReading& fields) {
  return !fields.instructions.empty() || !fields.label_names.empty();
}

DecisionOptions ToDecisionOptions(const DecisionReading& fields, DataPurpose purpose) {
  if (fields.max_options < 2 || fields.max_options > kMaxOptions) {
    ThrowInvalidInput("max_options: expected 2 to {}, found {}", kMaxOptions, fields.max_options);
  }
  const bool trains = purpose == DataPurpose::kTraining;
  return {.decision_template = fields.decision_template,
          .fields = {.text_column = fields.text_column,
                     .label_column = fields.label_column,
                     .label_names = fields.label_names,
                     .instructions = fields.instructions},
          .types = ParseQuestionTypes(fmt::format("{}", fmt::join(fields.question_types, ",")),
                                      "question_types"),
          .soft_targets = fields.soft_targets,
          .shuffles_options = trains && fields.option_order != "given",
          .max_options = trains ? fields.max_options : kMaxOptions,
          .share_prefix = fields.share_prefix,
          .given = GivenOptions(fields)};
}

// evaluated: as DescribeFound.
DataOptions Convert(const ReadingFields& fields, const std::vector<std::string>& paths,
                    const DataLimits& limits, const std::optional<PromptLayout>& recorded,
                    DataPurpose purpose, const std::set<std::string>& evaluated) {
  DataOptions data;
  RecordFormat format = ParseRecordFormat(fields.dataset_format);
  if (format == RecordFormat::kAuto && AsksOfTables(fields.decision)) {
    format = RecordFormat::kDecision;
  }
  for (const std::string& path : paths) {
    if (const GivenRecords* given = FindGiven(fields, path)) {
      data.sources.push_back({.path = path, .format = format, .descriptor = given->descriptor});
      continue;
    }
    // Every file of a folder or pattern has a separate report line and index, and the weight that
    // the user gave to all of them.
    FoundSources found = FindSources(path, format, purpose);
    data.sources.insert(data.sources.end(), found.sources.begin(), found.sources.end());
    data.notes.push_back(DescribeFound(path, found.files, evaluated));
    for (std::string& name : found.files.named) data.named_held_out.push_back(std::move(name));
  }
  std::erase(data.notes, "");
  data.max_length = ResolveMaxLength(fields, limits);
  data.context = limits.max_position_embeddings;
  data.over_long = ParseOverLong(fields.over_long);
  data.bad_records = ParseBadRecords(fields.bad_records);
  data.ignore_fields = fields.ignore_fields;
  data.train_on_inputs = fields.train_on_inputs;
  data.assistant_only_loss = fields.assistant_only_loss;
  data.train_turns = ParseTrainTurns(fields.train_turns);
  if (data.train_turns != TrainTurns::kAll &&
      (fields.train_on_inputs || !fields.assistant_only_loss)) {
    ThrowInvalidInput(
        "train_turns {} chooses turns, and {} trains on every token; leave out one of the two",
        fields.train_turns,
        fields.train_on_inputs ? "train_on_inputs" : "assistant_only_loss false");
  }
  data.append_eos = fields.append_eos;
  data.decision = ToDecisionOptions(fields.decision, purpose);
  data.preference = fields.preference;
  data.layout = {.choice = ParseLayoutChoice(fields.prompt_layout),
                 .prompt_template = fields.prompt_template,
                 .completion_template = fields.completion_template,
                 .recorded = recorded};
  // The size of the embedding, not of the tokenizer: models have more rows than there are tokens,
  // and ids of prepared data may use them.
  data.vocab_size = limits.vocab_size;
  data.reading = limits.reading;
  return data;
}

}  // namespace

DataOptions ToDataOptions(const ReadingFields& fields, const std::vector<std::string>& paths,
                          const DataLimits& limits, const std::optional<PromptLayout>& recorded,
                          DataPurpose purpose) {
  return Convert(fields, paths, limits, recorded, purpose, {});
}

// Converts as above, with the index on disk: only data that are visited again profit from an index.
DataOptions ToDataOptions(const DataFields& fields, DataPurpose purpose, const DataLimits& limits,
                          const std::optional<PromptLayout>& recorded) {
  const bool trains = purpose == DataPurpose::kTraining;
  DataOptions data =
      Convert(fields.reading, trains ? fields.dataset : fields.eval_dataset, limits, recorded,
              purpose, {fields.eval_dataset.begin(), fields.eval_dataset.end()});
  // Of several sets of records, another may have the tables.
  const bool is_alone = trains && fields.eval_dataset.empty() && fields.calibration_dataset.empty();
  if (!is_alone) std::erase_if(data.decision.given, IsOfTables);
  // The order of the file means that of its options too.
  if (!fields.shuffle) data.decision.shuffles_options = false;
  data.index_folder = fields.dataset_prepared_path;
  return data;
}

}  // namespace qlora
