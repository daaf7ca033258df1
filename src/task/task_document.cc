#include "task/task_document.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/pattern.h"
#include "jinja/python_str.h"
#include "task/python_literal.h"

namespace qlora {
namespace {

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The name of a column is a Jinja text as well, without braces: only a record tells.
bool MayBeColumn(const OrderedJson& spec) {
  return spec.is_string() && spec.get_ref<const std::string&>().find('{') == std::string::npos;
}

std::string RenderText(const JinjaTemplate& text, const OrderedJson& record) {
  std::vector<JinjaVariable> variables;
  for (const auto& [name, value] : record.items()) variables.push_back({name, &value});
  JinjaOptions options;
  options.dialect = JinjaDialect::kStrict;
  return text.Render(variables, options).text;
}

std::string WithoutMarkup(std::string_view text) {
  constexpr std::string_view kWhere = "process_docs of HellaSwag";
  std::string out(jinja::StripText(text));
  out = ReplaceMatches(" \\[title\\]", ". ", out, kWhere);
  out = ReplaceMatches("\\[.*?\\]", "", out, kWhere);
  return ReplaceMatches("  ", " ", out, kWhere);
}

const OrderedJson& Column(const OrderedJson& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end()) ThrowInvalidInput("the field '{}' of HellaSwag is missing", name);
  return *found;
}

}  // namespace

TaskField::TaskField(const OrderedJson& spec, const std::string& name) : spec_(spec) {
  if (spec.is_string()) {
    text_.emplace(spec.get<std::string>(), name, JinjaLayout::kPlain);
  } else if (spec.is_array()) {
    for (const OrderedJson& item : spec) {
      std::optional<JinjaTemplate>& text = items_.emplace_back();
      if (item.is_object() || item.is_array()) {
        ThrowInvalidInput("{}: expected a list of texts or numbers", name);
      }
      const bool has_braces = item.is_string() && !MayBeColumn(item);
      if (has_braces) text.emplace(item.get<std::string>(), name, JinjaLayout::kPlain);
    }
  } else if (spec.is_object()) {
    ThrowInvalidInput("{}: expected the name of a column, a Jinja text or a list", name);
  }
}

OrderedJson TaskField::Fill(const OrderedJson& record, Reading reading) const {
  if (spec_.is_array()) {
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      list.push_back(items_[i] ? OrderedJson(RenderText(*items_[i], record)) : spec_[i]);
    }
    return list;
  }
  if (!text_) return spec_;
  if (MayBeColumn(spec_)) {
    const auto column = record.find(spec_.get_ref<const std::string&>());
    if (column != record.end()) return *column;
  }
  std::string text = RenderText(*text_, record);
  if (reading.digits && IsDigits(text) && text.size() < 18) return std::stoll(text);
  if (reading.list && text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    const std::optional<OrderedJson> list = ParsePythonLiteral(text);
    if (list && list->is_array()) return *list;
  }
  return text;
}

std::string TextOf(const OrderedJson& value, const std::string& what) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number()) return FormatJson(value);
  ThrowInvalidInput("{}: expected a text, found {}", what, FormatJson(value));
}

TaskReader::TaskReader(const TaskFile& task)
    : task_(task),
      text_(task.doc_to_text, task.path.string() + ": doc_to_text"),
      target_(task.doc_to_target, task.path.string() + ": doc_to_target"),
      choice_(task.doc_to_choice, task.path.string() + ": doc_to_choice") {
  const bool has_choices = task.kind == TaskKind::kMultipleChoice;
  if (has_choices && !choice_.is_given()) {
    ThrowInvalidInput(
        "{}: doc_to_choice: missing; a multiple choice needs its choices: expected a list of "
        "texts, "
        "the name of a column that holds one, or a Jinja text that gives one",
        task.path.string());
  }
  if (!target_.is_given()) {
    ThrowInvalidInput(
        "{}: doc_to_target: missing; expected {}: the name of a column that holds it, or a Jinja "
        "text that gives it",
        task.path.string(), has_choices ? "the number or the text of the right choice" : "a text");
  }
}

TaskDocument TaskReader::Read(const OrderedJson& original) const {
  const OrderedJson record = task_.reads_hellaswag ? HellaswagRecord(original) : original;
  TaskDocument document;
  if (task_.kind == TaskKind::kMultipleChoice) {
    ReadChoices(record, document);
    return document;
  }
  if (text_.is_given() && task_.kind == TaskKind::kGenerate) {
    document.text = TextOf(text_.Fill(record, {}), "doc_to_text");
  }
  const bool generates = task_.kind == TaskKind::kGenerate;
  document.target = TextOf(target_.Fill(record, {.list = generates}), "doc_to_target");
  if (!generates && document.target.empty()) {
    ThrowInvalidInput("doc_to_target: expected a text, found an empty one");
  }
  if (task_.checks_instructions) document.instructions = InstructionsOf(record);
  return document;
}

void TaskReader::ReadChoices(const OrderedJson& record, TaskDocument& document) const {
  const OrderedJson choices = choice_.Fill(record, {.list = true});
  if (!choices.is_array() || choices.empty()) {
    ThrowInvalidInput(
        "doc_to_choice: expected a list of texts, found {}; name a column that holds one, or write "
        "a Jinja text that gives one",
        FormatJson(choices));
  }
  for (const OrderedJson& choice : choices) {
    document.choices.push_back(TextOf(choice, "doc_to_choice"));
  }
  const OrderedJson text = text_.Fill(record, {.digits = true});
  const OrderedJson target = target_.Fill(record, {.digits = true, .list = true});
  document.has_contexts = text.is_number_integer();
  const OrderedJson& gold = document.has_contexts ? text : target;
  for (const OrderedJson& one : gold.is_array() ? gold : OrderedJson::array({gold})) {
    const auto named = std::find(document.choices.begin(), document.choices.end(),
                                 one.is_string() ? one.get<std::string>() : std::string());
    const std::int64_t index =
        one.is_number_integer() ? one.get<std::int64_t>() : named - document.choices.begin();
    if (index < 0 || index >= std::ssize(document.choices)) {
      ThrowInvalidInput("{}: {} is none of the {} choices",
                        document.has_contexts ? "doc_to_text" : "doc_to_target", FormatJson(one),
                        document.choices.size());
    }
    document.gold.push_back(index);
  }
  if (document.gold.empty()) ThrowInvalidInput("doc_to_target: no choice is right");
  if (document.has_contexts) {
    document.target = TextOf(target, "doc_to_target");
  } else {
    document.text = TextOf(text, "doc_to_text");
    document.target = document.choices[document.gold.front()];
  }
}

OrderedJson HellaswagRecord(const OrderedJson& record) {
  OrderedJson out = record;
  const std::string context = TextOf(Column(record, "ctx_a"), "ctx_a") + " " +
                              jinja::Capitalized(TextOf(Column(record, "ctx_b"), "ctx_b"));
  const std::string label = TextOf(Column(record, "activity_label"), "activity_label");
  out["query"] = WithoutMarkup(label + ": " + context);
  OrderedJson endings = OrderedJson::array();
  for (const OrderedJson& ending : Column(record, "endings")) {
    endings.push_back(WithoutMarkup(TextOf(ending, "endings")));
  }
  out["choices"] = std::move(endings);
  const std::string gold = TextOf(Column(record, "label"), "label");
  if (IsDigits(gold) && gold.size() < 18) out["gold"] = std::stoll(gold);
  return out;
}

}  // namespace qlora
