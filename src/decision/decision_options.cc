#include "decision/decision_options.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace qlora {

bool IsOfTables(std::string_view option) {
  constexpr std::array<std::string_view, 4> kNames = {"text_column", "label_column", "label_names",
                                                      "instructions"};
  return std::ranges::count(kNames, option) > 0;
}

std::vector<std::string> GivenOptions(const DecisionReading& fields) {
  const DecisionReading usual;
  std::vector<std::string> given;
  const auto add = [&](const char* name, auto DecisionReading::*member) {
    if (fields.*member != usual.*member) given.emplace_back(name);
  };
  add("decision_template", &DecisionReading::decision_template);
  add("question_types", &DecisionReading::question_types);
  add("soft_targets", &DecisionReading::soft_targets);
  add("option_order", &DecisionReading::option_order);
  add("max_options", &DecisionReading::max_options);
  add("text_column", &DecisionReading::text_column);
  add("label_column", &DecisionReading::label_column);
  add("label_names", &DecisionReading::label_names);
  add("instructions", &DecisionReading::instructions);
  return given;
}

std::optional<std::string> FindIdle(const std::vector<std::string>& given,
                                    const std::set<DecisionForm>& forms) {
  for (const std::string& option : given) {
    const bool is_read = std::ranges::any_of(
        forms, [&](DecisionForm form) { return !IsOfTables(option) || ReadsField(form, option); });
    if (!is_read) return option;
  }
  return std::nullopt;
}

void CheckRead(const std::vector<std::string>& given, const std::set<DecisionForm>& forms,
               const std::string& where) {
  const auto idle = FindIdle(given, forms);
  if (!idle) return;
  ThrowInvalidInput(
      "{} would have no effect: the records of {} {}; leave it out", *idle, where,
      forms.empty() ? "ask no questions" : "have questions and answers in fields of their own");
}

}  // namespace qlora
