// How a rule is applied to the value of its key.
#include "migrate/rules.h"

#include <algorithm>
#include <cctype>

namespace qlora {
namespace {

// True when the value says "nothing": empty, false, none, 0.
bool IsOff(const YAML::Node& value) {
  if (value.IsNull()) return true;
  if (!value.IsScalar()) return value.size() == 0;
  const std::string text = Squeezed(value.Scalar());
  return text.empty() || text == "false" || text == "no" || text == "none" || text == "off" ||
         text == "0" || text == "0.0";
}

bool IsExpected(std::string_view values, const YAML::Node& value) {
  if (value.IsNull()) return true;
  const std::string text = value.IsScalar() ? Squeezed(value.Scalar()) : "";
  while (!values.empty()) {
    const std::size_t comma = std::min(values.find(','), values.size());
    if (Squeezed(values.substr(0, comma)) == text) return true;
    values.remove_prefix(std::min(comma + 1, values.size()));
  }
  return false;
}

}  // namespace

std::string Squeezed(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string TextOf(const YAML::Node& value) { return value.IsScalar() ? value.Scalar() : ""; }

void ApplyRule(const KeyRule& rule, const YAML::Node& value, MigrationTarget& target) {
  switch (rule.kind) {
    case RuleKind::kCopy:
      return target.Carry(std::string(rule.text), value);
    case RuleKind::kNotNeeded:
      return target.NotNeeded(rule.why);
    case RuleKind::kCustom:
      return rule.custom(value, target);
    case RuleKind::kExpect:
      return IsExpected(rule.text, value) ? target.NotNeeded(rule.why)
                                          : target.Unsupported(rule.why);
    case RuleKind::kUnsupported:
      return IsOff(value) ? target.NotNeeded("switched off") : target.Unsupported(rule.why);
  }
}

}  // namespace qlora
