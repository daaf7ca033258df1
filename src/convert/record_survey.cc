#include "convert/record_survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"
#include "data/dataset_report.h"
#include "data/format_example.h"
#include "data/token_record.h"
#include "decision/class_labels.h"
#include "decision/decision_record.h"
#include "io/json.h"
#include "preference/preference_record.h"
#include "prompt/conversation.h"
#include "prompt/field_template.h"
#include "prompt/known_fields.h"
#include "prompt/record_format.h"
#include "records/compressed_file.h"
#include "records/record_file.h"

namespace qlora {
namespace {

std::string KindOf(const OrderedJson& value) {
  if (value.is_string()) return "text";
  if (value.is_array()) return "list";
  if (value.is_boolean()) return "true or false";
  return value.is_object() ? "object" : "number";
}

std::int64_t CountCharactersOf(const OrderedJson& value) {
  std::int64_t count = 0;
  ForEachText(value, [&](const std::string& text, const OrderedJson* leaf) {
    if (leaf != nullptr) count += CountCharacters(text);
    return true;
  });
  return count;
}

// Returns a value to show: texts and lists are cut.
OrderedJson Shortened(const OrderedJson& value) {
  constexpr std::size_t kMostBytes = 160;
  constexpr std::size_t kMostItems = 6;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (text.size() <= kMostBytes) return value;
    return fmt::format("{} ... ({} characters)", FirstBytes(text, kMostBytes),
                       CountCharacters(text));
  }
  if (!value.is_structured()) return value;
  OrderedJson shorter = value.is_array() ? OrderedJson::array() : OrderedJson::object();
  for (const auto& [key, item] : value.items()) {
    if (shorter.size() == kMostItems && value.is_array()) {
      shorter.push_back(fmt::format("... ({} in all)", value.size()));
      break;
    }
    if (value.is_array()) {
      shorter.push_back(Shortened(item));
    } else {
      shorter[key] = Shortened(item);
    }
  }
  return shorter;
}

// Counts over the records of a file.
class Survey {
 public:
  void Add(const OrderedJson& record) {
    for (const auto& [name, value] : record.items()) {
      if (!SaysNothing(value)) AddField(name, value);
    }
    lengths_.push_back(CountCharactersOf(record));
  }

  std::vector<FieldSurvey> TakeNames() { return std::move(names_); }

  LengthSurvey Lengths() {
    if (lengths_.empty()) return {};
    std::ranges::sort(lengths_);
    LengthSurvey lengths = {.shortest = lengths_.front(),
                            .median = lengths_[lengths_.size() / 2],
                            .longest = lengths_.back()};
    for (const std::int64_t one : lengths_) lengths.total += one;
    return lengths;
  }

 private:
  void AddField(const std::string& name, const OrderedJson& value) {
    auto place = places_.find(name);
    if (place == places_.end()) {
      if (std::ssize(names_) == kMostNames) return;
      place = places_.emplace(name, names_.size()).first;
      names_.push_back({.name = name, .records = 0, .kinds = {}});
    }
    FieldSurvey& field = names_[place->second];
    ++field.records;
    std::string kind = KindOf(value);
    if (std::ranges::count(field.kinds, kind) == 0) field.kinds.push_back(std::move(kind));
  }

  std::vector<FieldSurvey> names_;
  std::unordered_map<std::string, std::size_t> places_;
  std::vector<std::int64_t> lengths_;
};

// Counts the roles of a list of turns, as they are written.
void CountRoles(const OrderedJson& turns, std::map<std::string, std::int64_t>& roles) {
  if (!turns.is_array()) return;
  for (const OrderedJson& turn : turns) {
    if (!turn.is_object()) continue;
    for (const char* name : {"role", "from"}) {
      if (turn.contains(name) && turn[name].is_string()) ++roles[turn[name].get<std::string>()];
    }
  }
}

// Refuses records that do not have what their format needs. Errors: as those of the readers.
class RecordCheck {
 public:
  RecordCheck(RecordFormat format, const LayoutRules& rules, DecisionFields fields)
      : format_(format), fields_(std::move(fields)) {
    if (format != RecordFormat::kTemplate) return;
    templates_.emplace_back(rules.prompt_template, "prompt_template");
    templates_.emplace_back(rules.completion_template, "completion_template");
  }

  void operator()(const OrderedJson& record) const {
    switch (format_) {
      case RecordFormat::kMessages:
        ConversationOfMessages(record);
        break;
      case RecordFormat::kShareGpt:
        ConversationOfShareGpt(record);
        break;
      case RecordFormat::kPromptCompletion:
        if (HasTurns(record)) {
          ConversationOfCompletion(record);
        } else {
          TextField(record, "prompt");
          TextField(record, "completion");
        }
        break;
      case RecordFormat::kInstruction:
        TextField(record, "instruction");
        TextField(record, "output");
        break;
      case RecordFormat::kText:
        TextField(record, "text");
        break;
      case RecordFormat::kDecision:
        ReadDecisionRecord(record, fields_);
        break;
      case RecordFormat::kInputIds:
        ReadTokenRecord(record);
        break;
      case RecordFormat::kTemplate:
        for (const FieldTemplate& one : templates_) one.Render(record);
        break;
      case RecordFormat::kAuto:
      case RecordFormat::kRaw:
        break;
    }
  }

  static bool HasTurns(const OrderedJson& record) {
    return record.contains("prompt") && record["prompt"].is_array();
  }

 private:
  RecordFormat format_;
  DecisionFields fields_;
  std::vector<FieldTemplate> templates_;
};

// What the records of a file prefer, by the first that can be read.
PreferenceForm PreferencesIn(const RecordFile& records, RecordFormat format) {
  if (format == RecordFormat::kDecision) return PreferenceForm::kNone;
  for (std::int64_t i = 0; i < records.size(); ++i) {
    try {
      const OrderedJson record = records.Read(i);
      if (!LooksLikePreference(record) || LooksLikeDecision(record)) return PreferenceForm::kNone;
      return ReadPreferenceRecord(record).is_pair() ? PreferenceForm::kPairs
                                                    : PreferenceForm::kLabels;
    } catch (const Error&) {
      continue;
    }
  }
  return PreferenceForm::kNone;
}

std::string_view NameOf(PreferenceForm form) {
  switch (form) {
    case PreferenceForm::kNone:
      return "";
    case PreferenceForm::kPairs:
      return "pairs of answers";
    case PreferenceForm::kLabels:
      return "answers with a label";
  }
  return "";
}

// The records that training makes of one: where answers have labels, a pair is two of them.
std::vector<OrderedJson> RecordsOf(const OrderedJson& written, PreferenceForm form) {
  if (form == PreferenceForm::kNone) return {written};
  PreferenceRecord record = ReadPreferenceRecord(written);
  if (record.is_pair() || form == PreferenceForm::kLabels) return std::move(record.answers);
  ThrowInvalidInput("the first record tells of {}, and this one is none of these", NameOf(form));
}

void SurveyPlainText(const FileBytes& file, FileSurvey& survey) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
  survey.format = RecordFormatName(RecordFormat::kRaw);
  survey.records = 1;
  for (std::uint64_t at = 0; at < file.size(); at += kPart) {
    survey.lengths.total += CountCharacters(file.Read(at, kPart));
  }
  survey.lengths.shortest = survey.lengths.median = survey.lengths.longest = survey.lengths.total;
  survey.first = FormatJson(Shortened(OrderedJson(file.Read(0, 4096))));
}

}  // namespace

FileSurvey SurveyFile(const DataSource& source, const DataOptions& options) {
  FileSurvey survey;
  survey.path = source.path.string();
  const FileBytes bytes = Decompressed(FileBytes(source.path), {}, {.reading = options.reading});
  survey.container = FileFormatName(DetectFileFormat(bytes));
  if (DetectFileFormat(bytes) == FileFormat::kPlainText) {
    SurveyPlainText(bytes, survey);
    return survey;
  }
  RecordFile records(bytes, {}, options.reading);
  records.Ignore(options.ignore_fields);
  const auto [begin, end] = source.slice.Of(records.size());
  survey.records = end - begin;
  const PreferenceForm form = PreferencesIn(records, source.format);
  survey.preferences = NameOf(form);
  if (form != PreferenceForm::kNone)
    survey.loss = form == PreferenceForm::kPairs ? "sigmoid" : "kto";
  std::optional<FormatExample> example;
  try {
    example = FindFormatExample(records, source.format, options.layout, form);
    survey.format = RecordFormatName(example->detected.format);
    survey.fields = DescribeFieldNames(example->detected.names);
  } catch (const Error& error) {
    survey.problem = error.what();
  }
  const RecordFormat format = example ? example->detected.format : RecordFormat::kAuto;
  bool is_conversation = IsConversationFormat(format);
  const DecisionFields fields = WithClassLabels(options.decision.fields, source.path);
  const RecordCheck check(format, options.layout, fields);
  Survey counts;
  for (std::int64_t i = begin; i < end; ++i) {
    try {
      const OrderedJson written = records.Read(i);
      counts.Add(written);
      if (survey.first.empty()) survey.first = FormatJson(Shortened(written), 2);
      if (!example) continue;
      for (OrderedJson& part : RecordsOf(written, form)) {
        const OrderedJson record = WithNamesOfFormat(std::move(part), example->detected);
        for (const char* list : {"messages", "conversations", "prompt", "completion"}) {
          if (record.contains(list)) CountRoles(record[list], survey.roles);
        }
        is_conversation = is_conversation || RecordCheck::HasTurns(record);
        const auto asks = DetectDecisionForm(record, fields);
        if (format == RecordFormat::kDecision && asks) survey.forms.insert(*asks);
        check(record);
      }
    } catch (const Error& error) {
      if (survey.bad++ > 0) continue;
      const std::string place = records.Where(i);
      const std::string_view what = error.what();
      survey.first_bad = what.starts_with(place) ? what : fmt::format("{}: {}", place, what);
    }
  }
  survey.needs_chat_template = is_conversation;
  survey.names = counts.TakeNames();
  survey.lengths = counts.Lengths();
  return survey;
}

std::string RenderSurvey(const FileSurvey& survey) {
  std::string text =
      fmt::format("{}: {}, {}", survey.path, survey.container, Counted(survey.records, "record"));
  if (!survey.preferences.empty()) text += fmt::format(", {}", survey.preferences);
  text += survey.format.empty() ? "\n" : fmt::format(", format {}\n", survey.format);
  if (!survey.fields.empty()) text += fmt::format("  read as: {}\n", survey.fields);
  for (const FieldSurvey& field : survey.names) {
    text += fmt::format("  field {}: {} in {} of {}\n", field.name, fmt::join(field.kinds, ", "),
                        field.records, survey.records);
  }
  std::vector<std::string> roles;
  for (const auto& [role, count] : survey.roles) roles.push_back(fmt::format("{} {}", role, count));
  if (!roles.empty()) text += fmt::format("  turns by role: {}\n", fmt::join(roles, ", "));
  const LengthSurvey& lengths = survey.lengths;
  text += fmt::format("  characters of a record: {} to {}, median {}; {} in all\n",
                      lengths.shortest, lengths.longest, lengths.median, lengths.total);
  if (survey.bad > 0) {
    text += fmt::format("  cannot be read or laid out: {}; the first: {}\n",
                        Counted(survey.bad, "record"), survey.first_bad);
  }
  if (!survey.problem.empty() && survey.problem != survey.first_bad)
    text += fmt::format("  {}\n", survey.problem);
  if (!survey.first.empty()) text += "first record:\n" + survey.first + "\n";
  return text;
}

OrderedJson SurveyToJson(const FileSurvey& survey) {
  OrderedJson fields = OrderedJson::array();
  for (const FieldSurvey& field : survey.names) {
    fields.push_back({{"name", field.name}, {"records", field.records}, {"kinds", field.kinds}});
  }
  return {{"path", survey.path},
          {"container", survey.container},
          {"format", survey.format.empty() ? OrderedJson() : OrderedJson(survey.format)},
          {"preferences", survey.preferences},
          {"read_as", survey.fields},
          {"problem", survey.problem},
          {"needs_chat_template", survey.needs_chat_template},
          {"records", survey.records},
          {"bad_records", survey.bad},
          {"first_bad", survey.first_bad},
          {"fields", fields},
          {"roles", survey.roles},
          {"characters",
           {{"shortest", survey.lengths.shortest},
            {"median", survey.lengths.median},
            {"longest", survey.lengths.longest},
            {"total", survey.lengths.total}}},
          {"first", survey.first}};
}

}  // namespace qlora
