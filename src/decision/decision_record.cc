#include "decision/decision_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

// The names of one field, the usual one first.
using Names = std::array<const char*, 4>;
constexpr Names kStateNames = {"state", "input"};
constexpr Names kAnswersNames = {"answers", "gold", "expected", "labels"};
constexpr Names kAnswerNames = {"answer", "gold", "expected", "label"};
constexpr Names kKeyNames = {"answerKey", "answer"};

// A field under one of its names.
struct Named {
  const char* name = nullptr;
  const OrderedJson* value = nullptr;  // null: the record has none

  explicit operator bool() const { return value != nullptr; }
};

Named FindNamed(const OrderedJson& record, const Names& names) {
  for (const char* name : names) {
    if (name == nullptr) break;
    if (const OrderedJson* value = FindField(record, name)) return {name, value};
  }
  return {};
}

bool IsJsonText(const OrderedJson& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.starts_with('{') || text.starts_with('[');
}

// Questions and answers are objects or lists: a text can only be their JSON.
OrderedJson Unpacked(const OrderedJson& value, const std::string& where) {
  if (!IsJsonText(value)) return value;
  return ParseOrderedJson(value.get_ref<const std::string&>(), where, DuplicateKeys::kRefuse);
}

OrderedJson ReadState(const OrderedJson& state, Notices& notices) {
  OrderedJson parsed;
  if (!IsJsonText(state) || TryParseJson(state.get_ref<const std::string&>(), parsed)) return state;
  notices.push_back(kNoticeStateText);
  return parsed;
}

// One object, or a list of objects with types.
bool AreQuestions(const OrderedJson& value) {
  if (IsJsonText(value)) return true;
  if (value.is_object()) return !value.empty() && value.front().is_object();
  return value.is_array() && !value.empty() && value.front().is_object() &&
         value.front().contains("type");
}

// True when a reader might take two keys, or two levels, for the same.
bool HasTwins(const Question& question) {
  std::unordered_set<std::string> seen;
  return std::ranges::any_of(question.options, [&](const DecisionOption& option) {
    const bool is_level = question.type == QuestionType::kScore;
    const std::string text = is_level ? TextOrJson(option.description) : option.key;
    return !seen.insert(LowerText(Trim(text))).second;
  });
}

void AddQuestion(DecisionRecord& record, Question question, const OrderedJson* answer,
                 const std::string& where) {
  if (HasTwins(question)) record.notices.push_back(kNoticeTwins);
  record.targets.push_back(
      answer == nullptr ? std::nullopt : ReadTarget(question, *answer, where, record.notices));
  record.decision.questions.push_back(std::move(question));
}

// The id of question `i` of a list.
std::string IdInList(const OrderedJson& question, std::size_t i) {
  const OrderedJson* name = question.is_object() ? FindField(question, "name") : nullptr;
  return name != nullptr && name->is_string() ? name->get<std::string>() : std::to_string(i);
}

void CheckAnswersAreOfQuestions(const DecisionRecord& record, const Named& answers,
                                const OrderedJson& values) {
  std::unordered_set<std::string_view> ids;
  for (const Question& question : record.decision.questions) ids.insert(question.id);
  for (const auto& [id, answer] : values.items()) {
    if (ids.contains(id)) continue;
    ThrowInvalidInput("{}: '{}' is not among the questions", answers.name, id);
  }
}

// The answers, which are an object or a list as the questions are; null without any.
OrderedJson ReadAnswers(const Named& answers, const OrderedJson& questions) {
  if (!answers) return nullptr;
  OrderedJson values = Unpacked(*answers.value, answers.name);
  const bool in_order = values.is_array() && questions.is_array();
  if (!values.is_object() && !in_order) {
    ThrowInvalidInput("{}: expected an object with an answer for each question, found {}",
                      answers.name, ShortJson(values));
  }
  if (in_order && values.size() != questions.size()) {
    ThrowInvalidInput("{}: expected {} answers, one for each question, found {}", answers.name,
                      questions.size(), values.size());
  }
  return values;
}

DecisionRecord ReadQuestions(const OrderedJson& record) {
  DecisionRecord out;
  const Named state = FindNamed(record, kStateNames);
  if (!state)
    ThrowInvalidInput("state: missing; it is the text or the object that is decided about");
  out.decision.state = ReadState(*state.value, out.notices);
  const OrderedJson questions = Unpacked(*FindField(record, "questions"), "questions");
  if (!questions.is_structured() || questions.empty()) {
    ThrowInvalidInput(
        "questions: expected an object of questions, {{\"id\": {{\"type\", \"instructions\", "
        "\"criteria\"}}}}, at least one, found {}",
        ShortJson(questions));
  }
  const Named answers = FindNamed(record, kAnswersNames);
  const OrderedJson values = ReadAnswers(answers, questions);
  std::unordered_set<std::string> ids;
  std::size_t i = 0;
  for (const auto& [key, question] : questions.items()) {
    const std::string id = questions.is_object() ? key : IdInList(question, i);
    if (!ids.insert(id).second) ThrowInvalidInput("questions: '{}' appears twice", id);
    const OrderedJson* answer = values.is_array()    ? &values[i]
                                : values.is_object() ? FindField(values, id)
                                                     : nullptr;
    const std::string place = fmt::format("{}.{}", answers ? answers.name : "answers", id);
    AddQuestion(out, ReadQuestion(question, id, "questions." + id, {}), answer, place);
    ++i;
  }
  if (values.is_object()) CheckAnswersAreOfQuestions(out, answers, values);
  return out;
}

DecisionRecord ReadOneQuestion(const OrderedJson& record) {
  DecisionRecord out;
  out.decision.state = ReadState(*FindField(record, "state"), out.notices);
  OrderedJson fields = record;
  for (const char* packed : {"criteria", "choices", "levels"}) {
    if (fields.contains(packed)) fields[packed] = Unpacked(fields[packed], packed);
  }
  const OrderedJson* name = FindField(record, "name");
  std::string id = name != nullptr && name->is_string() ? name->get<std::string>() : "question";
  const Named answer = FindNamed(record, kAnswerNames);
  AddQuestion(out, ReadQuestion(fields, std::move(id), "question", {}), answer.value,
              answer ? answer.name : "");
  return out;
}

std::string TextOf(const OrderedJson& value) {
  return value.is_string() ? std::string(Trim(value.get_ref<const std::string&>()))
                           : FormatJson(value);
}

// The whole number that a value is, or states as text ("2", "2.0"); nothing otherwise.
std::optional<std::int64_t> IndexOf(const OrderedJson& value) {
  if (!value.is_number() && !value.is_string()) return std::nullopt;
  constexpr double kMost = 1e9;
  const std::optional<double> number = ParseNumber<double>(TextOf(value));
  if (!number || *number != std::floor(*number) || std::abs(*number) >= kMost) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

// The place of a text among others; where it is none of them, of the same number in another
// spelling: tables write 3 as "3.0". -1: none.
std::int64_t PlaceOf(const std::vector<std::string>& texts, const std::string& text) {
  auto place = std::ranges::find(texts, text);
  const std::optional<double> number = ParseNumber<double>(text);
  // Beyond that, doubles do not tell whole numbers apart.
  if (place == texts.end() && number && std::abs(*number) < 0x1p53) {
    place = std::ranges::find(texts, number, ParseNumber<double>);
  }
  return place == texts.end() ? -1 : place - texts.begin();
}

// The option that a text or number is; -1: none.
std::int64_t NamedOption(const Question& question, const OrderedJson& answer) {
  const std::string text = TextOf(answer);
  const std::int64_t exact =
      FindOption(question, answer.is_string() ? answer.get_ref<const std::string&>() : text);
  if (exact >= 0) return exact;
  std::vector<std::string> keys;
  for (const DecisionOption& option : question.options) keys.emplace_back(Trim(option.key));
  return PlaceOf(keys, text);
}

// A question whose options are texts, of which each is its own key.
Question ChoiceOf(std::string id, const OrderedJson& instructions, const OrderedJson& keys,
                  const std::string& where) {
  const OrderedJson question = {
      {"type", "choice"}, {"instructions", instructions}, {"criteria", keys}};
  return ReadQuestion(question, std::move(id), where, {});
}

// Returns the key of the option that an answer names by its key or its number; other answers as
// they are. -1 says that nobody knows. Errors: InvalidInput for a number that no option has, and
// for text that is the key of one option and the number of another: tables hold numbers as text, so
// that the same rows would be read otherwise from another kind of file. has_numbers: some
// options are numbers, so that a number may be meant as one of them, too.
OrderedJson KeyOfIndex(const Question& question, const OrderedJson& answer,
                       const std::string& where, bool has_numbers = false) {
  const auto index = IndexOf(answer);
  const std::int64_t named = answer.is_string() || has_numbers ? NamedOption(question, answer) : -1;
  if (named >= 0) {
    const bool is_other = index && *index != named && *index >= 0;
    if (!is_other || *index >= std::ssize(question.options)) return question.options[named].key;
    ThrowInvalidInput(
        "{}: {} names one option by its text and another by its number, which counts from 0: {}. "
        "Write options that are no numbers, such as \"2 stars\", or the answer as a list with a "
        "probability for each option",
        where, ShortJson(answer), ListOfOptions(question));
  }
  if (!index || *index == -1) return answer;
  if (*index < 0 || *index >= std::ssize(question.options)) {
    const bool may_begin_at_1 = *index == std::ssize(question.options);
    ThrowInvalidInput("{}: label {} is not among the {} names: {}{}", where, *index,
                      question.options.size(), ListOfOptions(question),
                      may_begin_at_1 ? "; numbers count from 0: if these count from 1, none of the "
                                       "records is right, so write the names in their place"
                                     : "");
  }
  return question.options[*index].key;
}

DecisionRecord ReadClassification(const OrderedJson& record, const DecisionFields& fields) {
  if (fields.instructions.empty()) {
    ThrowInvalidInput(
        "instructions: missing; texts with labels need one question that is asked about every "
        "text, "
        "such as \"What is this text about?\"");
  }
  if (fields.label_names.empty()) {
    ThrowInvalidInput(
        "label_names: missing, and no description of the data set has names for column '{}'; list "
        "them in the order of their numbers",
        fields.label_column);
  }
  DecisionRecord out;
  const OrderedJson* text = FindField(record, fields.text_column);
  out.decision.state = *text;
  Question question = ChoiceOf(fields.label_column, fields.instructions,
                               OrderedJson(fields.label_names), "label_names");
  for (DecisionOption& option : question.options) {
    const std::string words = ReplaceAll(ReplaceAll(option.key, "_", " "), "/", " ");
    if (words != option.key) option.description = words;
  }
  const OrderedJson* label = FindField(record, fields.label_column);
  const OrderedJson key =
      label == nullptr ? OrderedJson(nullptr) : KeyOfIndex(question, *label, fields.label_column);
  AddQuestion(out, std::move(question), &key, fields.label_column);
  return out;
}

// The key of the choice that a label of ARC ("B", "2") or a letter of MMLU names. Errors: as
// KeyOfIndex; for an answer that is none of the labels, and for a letter that is another choice.
OrderedJson KeyOfChoice(const Question& question, const OrderedJson* labels,
                        const OrderedJson& answer, const OrderedJson& choices, const char* where) {
  const std::string text = TextOf(answer);
  const auto count = std::ssize(question.options);
  const std::int64_t letter =
      text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z' && text[0] - 'A' < count ? text[0] - 'A'
                                                                                    : -1;
  const std::int64_t named = NamedOption(question, answer);
  if (labels != nullptr && labels->is_array() && !labels->empty()) {
    // "3" and 3 are one label.
    std::vector<std::string> texts;
    for (const OrderedJson& label : *labels) texts.push_back(TextOf(label));
    const std::int64_t place = PlaceOf(texts, text);
    if (place >= 0 && place < count) return question.options[place].key;
    if (named >= 0) return question.options[named].key;
    if (letter >= 0 || IndexOf(answer).value_or(-1) >= 0) {
      ThrowInvalidInput("{}: {} is not among the labels {}", where, ShortJson(answer),
                        ShortJson(*labels));
    }
  } else if (letter >= 0) {
    if (named < 0 || named == letter) return question.options[letter].key;
    ThrowInvalidInput(
        "{}: {} names one choice by its text and another by its letter: {}. Write the answer as "
        "the number of the choice, which counts from 0",
        where, ShortJson(answer), ListOfOptions(question));
  }
  const bool has_numbers = std::any_of(
      choices.begin(), choices.end(), [](const OrderedJson& choice) { return choice.is_number(); });
  return KeyOfIndex(question, answer, where, has_numbers);
}

DecisionRecord ReadMultipleChoice(const OrderedJson& record, const DecisionFields& fields) {
  DecisionRecord out;
  out.decision.state = *FindField(record, "question");
  const OrderedJson choices = Unpacked(*FindField(record, "choices"), "choices");
  const OrderedJson* texts = choices.is_object() ? FindField(choices, "text") : &choices;
  if (texts == nullptr || !texts->is_array()) {
    ThrowInvalidInput(
        "choices: expected a list, or an object with lists 'text' and 'label', found {}",
        ShortJson(choices));
  }
  const std::string instructions =
      fields.instructions.empty() ? "Which answer is right?" : fields.instructions;
  Question question = ChoiceOf("answer", instructions, *texts, "choices");
  const Named answer = FindNamed(record, kKeyNames);
  const OrderedJson key =
      answer ? KeyOfChoice(question, choices.is_object() ? FindField(choices, "label") : nullptr,
                           *answer.value, *texts, answer.name)
             : OrderedJson(nullptr);
  AddQuestion(out, std::move(question), &key, answer ? answer.name : "");
  return out;
}

std::string NamesOfFields(const OrderedJson& record) {
  std::string names;
  for (const auto& [name, value] : record.items()) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

}  // namespace

bool LooksLikeDecision(const OrderedJson& record) {
  const auto has = [&](const char* name) { return FindField(record, name) != nullptr; };
  const OrderedJson* questions = FindField(record, "questions");
  if (questions != nullptr && FindNamed(record, kStateNames) && AreQuestions(*questions))
    return true;
  // A list of none, which a reader of decisions names.
  if (questions != nullptr && has("state") && questions->is_structured() && questions->empty()) {
    return true;
  }
  if (has("state") && has("type") && has("instructions")) return true;
  const OrderedJson* choices = FindField(record, "choices");
  return has("question") && choices != nullptr && choices->is_structured() &&
         FindNamed(record, kKeyNames);
}

std::optional<DecisionForm> DetectDecisionForm(const OrderedJson& record,
                                               const DecisionFields& fields) {
  const auto has = [&](const std::string& name) { return FindField(record, name) != nullptr; };
  const OrderedJson* questions = FindField(record, "questions");
  if (questions != nullptr && (AreQuestions(*questions) || questions->is_structured())) {
    return DecisionForm::kQuestions;
  }
  if (has("state") && has("type")) return DecisionForm::kOneQuestion;
  if (has("question") && has("choices")) return DecisionForm::kMultipleChoice;
  if (has(fields.text_column) && record.contains(fields.label_column)) {
    return DecisionForm::kClassification;
  }
  return std::nullopt;
}

bool ReadsField(DecisionForm form, std::string_view field) {
  if (form == DecisionForm::kClassification) return true;
  return form == DecisionForm::kMultipleChoice && field == "instructions";
}

DecisionRecord ReadDecisionRecord(const OrderedJson& record, const DecisionFields& fields) {
  const auto form = DetectDecisionForm(record, fields);
  if (!form) {
    ThrowInvalidInput(
        "this is no decision: expected the fields state and questions, or state, type, "
        "instructions and answer, or question, choices and answer, or {} and {}; found: {}",
        fields.text_column, fields.label_column, NamesOfFields(record));
  }
  switch (*form) {
    case DecisionForm::kQuestions:
      return ReadQuestions(record);
    case DecisionForm::kOneQuestion:
      return ReadOneQuestion(record);
    case DecisionForm::kMultipleChoice:
      return ReadMultipleChoice(record, fields);
    case DecisionForm::kClassification:
      break;
  }
  return ReadClassification(record, fields);
}

}  // namespace qlora
