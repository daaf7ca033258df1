// How a rule is applied to the value of its key.
#include "foreign/rules.h"

#include "base/text.h"
#include "qlora/options.h"

namespace qlora {
namespace {

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

std::string Underscored(std::string_view key) { return ReplaceAll(std::string(key), "-", "_"); }

std::string Squeezed(std::string_view key) {
  std::string out = LowerCase(key);
  std::erase_if(out, [](char c) { return c == '_' || c == '-'; });
  return out;
}

bool IsNone(const YAML::Node& value) {
  if (!value) return true;  // a key that is not there
  if (!value.IsScalar()) return value.IsNull();
  const std::string& text = value.Scalar();
  // "none" in small letters is a word of its own in several keys, such as bias and report_to.
  return text == "None" || text == "null" || text == "Null" || text == "NULL" || text == "~";
}

bool IsOff(const YAML::Node& value) {
  if (!value || value.IsNull()) return true;
  if (!value.IsScalar()) return value.size() == 0;
  // YAML has several words for no; Python files have None and False.
  const std::string text = Squeezed(value.Scalar());
  return text.empty() || text == "false" || text == "no" || text == "none" || text == "off" ||
         text == "0" || text == "0.0";
}

std::string TextOf(const YAML::Node& value) {
  return value && value.IsScalar() ? value.Scalar() : "";
}

std::string LowerText(const YAML::Node& value) { return LowerCase(TextOf(value)); }

std::string BoolText(const YAML::Node& value) {
  const std::optional<bool> on = ParseBool(TextOf(value));
  return on ? (*on ? "true" : "false") : LowerText(value);
}

std::string OneLine(const YAML::Node& value) {
  std::string text;
  const auto add = [&](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  if (value.IsMap()) {
    for (const auto& entry : value) add(OneLine(entry.first) + ": " + OneLine(entry.second));
    return "{" + text + "}";
  }
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) add(OneLine(item));
    return "[" + text + "]";
  }
  if (!value.IsScalar()) return "";
  YAML::Emitter out;
  out << YAML::Flow << YAML::BeginSeq << value.Scalar() << YAML::EndSeq;  // quoted where needed
  text = out.c_str();
  // Without the brackets of the list, which made the emitter quote as inside a list.
  return text.substr(1, text.size() - 2);
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

void ApplyRule(const KeyRule& rule, std::string_view key, const YAML::Node& given,
               MigrationTarget& target) {
  // One form of None for all rules.
  const YAML::Node value = IsNone(given) ? YAML::Node(YAML::NodeType::Null) : given;
  switch (rule.kind) {
    case RuleKind::kCopy:
      return target.Carry(std::string(rule.text.empty() ? key : rule.text), value);
    case RuleKind::kFile:
      if (value.IsNull()) return target.NotNeeded("empty: no file");
      return TextOf(value).empty() ? target.Unsupported("expected the name of a file")
                                   : target.AddDataset(std::string(rule.text), value.Scalar());
    case RuleKind::kSteps:
      if (!IsShare(value)) return target.Carry(std::string(key), value);
      return rule.text.empty() ? target.Unsupported("a share of the run; give a number of steps")
                               : target.Carry(std::string(rule.text), value);
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
