#include "decision/question.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"

namespace qlora {
namespace {

using Options = std::vector<DecisionOption>;

void CheckKeysDiffer(const Question& question, const std::string& where) {
  std::unordered_set<std::string_view> seen;
  for (const DecisionOption& option : question.options) {
    if (seen.insert(option.key).second) continue;
    ThrowInvalidInput("{}: option '{}' appears twice; every option needs a key of its own", where,
                      option.key);
  }
}

// The key of an option that a list names: a text, or a value that JSON writes on one line.
DecisionOption ListedOption(const OrderedJson& value, const std::string& where) {
  if (value.is_structured() || value.is_null()) {
    ThrowInvalidInput("{}: expected the key of an option, found {}", where, ShortJson(value));
  }
  return {TextOrJson(value), nullptr, value};
}

Options ChoiceOptions(const OrderedJson* criteria, const std::string& where,
                      const QuestionRules& rules) {
  Options options;
  if (criteria != nullptr && criteria->is_object()) {
    for (const auto& [key, description] : criteria->items()) {
      options.push_back({key, description, key});
    }
  } else if (criteria != nullptr && criteria->is_array() && rules.all_forms) {
    for (const OrderedJson& key : *criteria) options.push_back(ListedOption(key, where));
  } else {
    ThrowInvalidInput(
        "{}: expected an object of options and their descriptions (or null){}, found {}", where,
        rules.all_forms ? ", or a list of options" : "",
        criteria == nullptr ? "nothing" : ShortJson(*criteria));
  }
  return options;
}

Options ScoreOptions(const OrderedJson* levels, const std::string& where) {
  const bool fits = levels != nullptr && levels->is_array() && std::ssize(*levels) >= kMinLevels &&
                    std::ssize(*levels) <= kMaxLevels;
  if (!fits) {
    ThrowInvalidInput("{}: expected a list of {} to {} levels, found {}", where, kMinLevels,
                      kMaxLevels,
                      levels == nullptr    ? "nothing"
                      : levels->is_array() ? fmt::format("{} of them", levels->size())
                                           : ShortJson(*levels));
  }
  Options options;
  for (const OrderedJson& level : *levels) {
    options.push_back({std::to_string(options.size()), level, level});
  }
  return options;
}

Options NoulOptions(const OrderedJson* criteria, const std::string& where) {
  Options options = {{"false", nullptr, false}, {"true", nullptr, true}};
  if (criteria == nullptr) return options;
  if (!criteria->is_object()) {
    ThrowInvalidInput("{}: expected an object with 'true' and 'false', found {}", where,
                      ShortJson(*criteria));
  }
  for (const auto& [key, description] : criteria->items()) {
    if (key != "true" && key != "false") {
      ThrowInvalidInput("{}: a noul has the sides 'true' and 'false', found '{}'", where, key);
    }
    options[key == "true" ? 1 : 0].description = description;
  }
  return options;
}

// {"value", "description"} of a choice.
Options OpenAiChoices(const OrderedJson* choices, const std::string& where) {
  constexpr std::int64_t kMostChoices = 255;
  if (choices == nullptr || !choices->is_array() || std::ssize(*choices) > kMostChoices) {
    ThrowInvalidInput("{}: expected a list of at most {} choices, each with a 'value', found {}",
                      where, kMostChoices, choices == nullptr ? "nothing" : ShortJson(*choices));
  }
  Options options;
  for (const OrderedJson& choice : *choices) {
    const OrderedJson* value = choice.is_object() ? FindField(choice, "value") : nullptr;
    if (value == nullptr || !(value->is_string() || value->is_boolean())) {
      ThrowInvalidInput("{}[{}]: expected an object whose 'value' is text, true or false, found {}",
                        where, options.size(), ShortJson(choice));
    }
    const bool seen =
        std::any_of(options.begin(), options.end(),
                    [&](const DecisionOption& option) { return option.value == *value; });
    if (seen) ThrowInvalidInput("{}: choice {} appears twice", where, ShortJson(*value));
    DecisionOption& option = options.emplace_back(ListedOption(*value, where));
    if (const OrderedJson* text = FindField(choice, "description")) option.description = *text;
  }
  return options;
}

// {"label", "description"} of a level.
Options OpenAiLevels(const OrderedJson* levels, const std::string& where) {
  Options options = ScoreOptions(levels, where);
  for (DecisionOption& option : options) {
    const OrderedJson level = std::exchange(option.value, nullptr);
    const OrderedJson* label = level.is_object() ? FindField(level, "label") : nullptr;
    if (label == nullptr || !label->is_string()) {
      ThrowInvalidInput("{}[{}]: expected an object whose 'label' is text, found {}", where,
                        option.key, ShortJson(level));
    }
    option.value = *label;
    const OrderedJson* description = FindField(level, "description");
    option.description = description == nullptr ? *label : *description;
  }
  return options;
}

Question BeginQuestion(const OrderedJson& question, std::string id, const std::string& where) {
  if (!question.is_object()) {
    ThrowInvalidInput("{}: expected an object with type and instructions, found {}", where,
                      ShortJson(question));
  }
  Question out;
  out.id = std::move(id);
  const OrderedJson* type = FindField(question, "type");
  const auto known = type == nullptr || !type->is_string()
                         ? std::nullopt
                         : FindQuestionType(type->get<std::string>());
  if (!known) {
    ThrowInvalidInput("{}.type: expected noul (OpenAI: predicate), choice or score, found {}",
                      where, type == nullptr ? "nothing" : ShortJson(*type));
  }
  out.type = *known;
  const OrderedJson* instructions = FindField(question, "instructions");
  const bool is_empty = instructions != nullptr && instructions->is_string() &&
                        instructions->get_ref<const std::string&>().empty();
  if (instructions == nullptr || is_empty) {
    ThrowInvalidInput("{}.instructions: missing; a question says here what is to be decided",
                      where);
  }
  out.instructions = *instructions;
  return out;
}

void CheckCount(const Question& question, const std::string& where, std::int64_t least) {
  if (question.type != QuestionType::kChoice || std::ssize(question.options) >= least) return;
  ThrowInvalidInput("{}: expected at least {} options, found {}", where, least,
                    question.options.size());
}

}  // namespace

std::string_view NameOf(QuestionType type) {
  switch (type) {
    case QuestionType::kNoul:
      return "noul";
    case QuestionType::kChoice:
      return "choice";
    case QuestionType::kScore:
      return "score";
  }
  return "";
}

std::optional<QuestionType> FindQuestionType(std::string_view name) {
  for (const QuestionType type : kQuestionTypes) {
    if (NameOf(type) == name) return type;
  }
  return name == "predicate" ? std::optional(QuestionType::kNoul) : std::nullopt;
}

std::vector<QuestionType> ParseQuestionTypes(std::string_view list, std::string_view where) {
  std::vector<QuestionType> types;
  for (const std::string_view word : Words(list, ',')) {
    const auto type = FindQuestionType(Trim(word));
    if (!type) ThrowInvalidInput("{}: expected noul, choice or score, found '{}'", where, word);
    if (std::count(types.begin(), types.end(), *type) == 0) types.push_back(*type);
  }
  if (types.empty()) {
    ThrowInvalidInput("{}: expected some of noul, choice and score, as noul,choice", where);
  }
  return types;
}

Question ReadQuestion(const OrderedJson& question, std::string id, const std::string& where,
                      const QuestionRules& rules) {
  Question out = BeginQuestion(question, std::move(id), where);
  const bool is_openai = rules.all_forms && FindField(question, "criteria") == nullptr &&
                         (FindField(question, "choices") || FindField(question, "levels"));
  if (is_openai) return ReadOpenAiQuestion(question, out.id, where);
  const OrderedJson* criteria = FindField(question, "criteria");
  const std::string place = where + ".criteria";
  switch (out.type) {
    case QuestionType::kNoul:
      out.options = NoulOptions(criteria, place);
      break;
    case QuestionType::kChoice:
      out.options = ChoiceOptions(criteria, place, rules);
      break;
    case QuestionType::kScore:
      out.options = ScoreOptions(criteria, place);
      break;
  }
  CheckKeysDiffer(out, place);
  CheckCount(out, place, rules.min_options);
  return out;
}

Question ReadOpenAiQuestion(const OrderedJson& question, std::string id, const std::string& where) {
  Question out = BeginQuestion(question, std::move(id), where);
  if (out.type == QuestionType::kNoul) {
    out.options = NoulOptions(nullptr, where);
  } else if (out.type == QuestionType::kChoice) {
    out.options = OpenAiChoices(FindField(question, "choices"), where + ".choices");
    CheckCount(out, where + ".choices", 2);
  } else {
    out.options = OpenAiLevels(FindField(question, "levels"), where + ".levels");
  }
  return out;
}

std::int64_t FindOption(const Question& question, std::string_view key) {
  for (std::int64_t i = 0; i < std::ssize(question.options); ++i) {
    if (question.options[i].key == key) return i;
  }
  return -1;
}

std::string ListOfOptions(const Question& question) {
  constexpr std::int64_t kShown = 12;
  std::string list;
  for (std::int64_t i = 0; i < std::ssize(question.options); ++i) {
    if (i == kShown) return fmt::format("{} and {} more", list, question.options.size() - i);
    const DecisionOption& option = question.options[i];
    list += i == 0 ? "" : ", ";
    const bool is_level = question.type == QuestionType::kScore;
    list += is_level ? option.key + " = " + ShortJson(option.value) : option.key;
  }
  return list;
}

std::int64_t FirstLargest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

double MeanLevel(const std::vector<double>& shares) {
  double level = 0;
  for (std::size_t k = 0; k < shares.size(); ++k) level += static_cast<double>(k) * shares[k];
  return level;
}

std::string ShortJson(const OrderedJson& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = FormatJson(value);
  return text.size() <= kMost ? text : fmt::format("{} ...", FirstBytes(text, kMost));
}

const OrderedJson* FindField(const OrderedJson& object, std::string_view key) {
  const auto field = object.find(std::string(key));
  return field == object.end() || field->is_null() ? nullptr : &*field;
}

}  // namespace qlora
