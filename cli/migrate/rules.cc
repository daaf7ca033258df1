// How a rule is applied to the value of its key.
#include "migrate/rules.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace qlora {
namespace {

// True when the value says "nothing": empty, false, none, 0.
bool IsOff(const YAML::Node& value) {
  if (value.IsNull()) return true;
  if (!value.IsScalar()) return value.size() == 0;
  // YAML has several words for no; Python files have None and False.
  const std::string text = Squeezed(value.Scalar());
  return text.empty() || text == "false" || text == "no" || text == "none" || text == "off" ||
         text == "0" || text == "0.0";
}

bool IsExpected(std::string_view values, const YAML::Node& value) {
  if (value.IsNull()) return true;
  const std::string text = value.IsScalar() ? Squeezed(value.Scalar()) : "";
  return HasWord(Squeezed(values), text, ',');
}

// True for a share of the run, where we count steps.
bool IsShare(const YAML::Node& value) {
  double number = 0;
  // transformers takes eval_steps 0.1 as a tenth of the run.
  return YAML::convert<double>::decode(value, number) && number > 0 && number < 1;
}

}  // namespace

std::string Underscored(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string Squeezed(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string TextOf(const YAML::Node& value) {
  return value && value.IsScalar() ? value.Scalar() : "";
}

const KeyRule* FindRule(std::initializer_list<std::span<const KeyRule>> tables,
                        std::string_view key) {
  for (const std::span<const KeyRule>& rules : tables) {
    for (const KeyRule& rule : rules) {
      // The first table that knows the key: the trainer's own meaning comes before the meaning of
      // transformers.
      if (HasWord(rule.keys, key)) return &rule;
    }
  }
  return nullptr;
}

void ApplyRule(const KeyRule& rule, std::string_view key, const YAML::Node& value,
               MigrationTarget& target) {
  switch (rule.kind) {
    case RuleKind::kCopy:
      return target.Carry(std::string(rule.text.empty() ? key : rule.text), value);
    case RuleKind::kFile:
      return TextOf(value).empty() ? target.Unsupported("expected the name of a file")
                                   : target.AddDataset(std::string(rule.text), value.Scalar());
    case RuleKind::kSteps:
      return IsShare(value) ? target.Unsupported("a share of the run; give a number of steps")
                            : target.Carry(std::string(key), value);
    case RuleKind::kNotNeeded:
      return target.NotNeeded(rule.why);
    case RuleKind::kCustom:
      return rule.custom(value, target);
    case RuleKind::kExpect:
      return IsExpected(rule.text, value) ? target.NotNeeded(rule.why)
                                          : target.Unsupported(rule.why);
    // A feature that is switched off is missed by no one.
    case RuleKind::kUnsupported:
      return IsOff(value) ? target.NotNeeded("switched off") : target.Unsupported(rule.why);
  }
}

}  // namespace qlora
