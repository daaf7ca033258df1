#include "decision/decision_file.h"

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/file.h"
#include "decision/question.h"
#include "io/json.h"

namespace qlora {

void WriteDecisionFile(const std::filesystem::path& folder, const DecisionFile& file) {
  OrderedJson temperature = OrderedJson::object();
  for (const auto& [name, value] : file.temperatures.values()) temperature[name] = value;
  const OrderedJson json = {
      {"type", kDecisionType},
      {"template", file.decision_template},
      {"temperature", temperature},
      {"labels", file.labels},
      {"fitted_on", file.fitted_on.empty() ? OrderedJson(nullptr) : OrderedJson(file.fitted_on)}};
  WriteTextFile(folder / kDecisionFile, FormatJson(json, 2) + '\n');
}

std::optional<DecisionFile> ReadDecisionFile(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kDecisionFile;
  if (!Exists(path)) return std::nullopt;
  const std::string where = path.string();
  const Json json = ParseJson(ReadTextFile(path), where, DuplicateKeys::kRefuse);
  const auto type = JsonGet<std::string>(json, "type", where);
  if (type != kDecisionType) {
    ThrowInvalidInput("{}: key 'type': expected {}, found '{}'", where, kDecisionType, type);
  }
  DecisionFile file;
  file.decision_template = JsonGet<std::string>(json, "template", where);
  file.labels = JsonGet<std::vector<std::string>>(json, "labels", where);
  file.fitted_on = JsonGetOr<std::string>(json, "fitted_on", "", where);
  if (const Json* temperature = FindJson(json, "temperature", where)) {
    const std::string place = where + ": key 'temperature'";
    if (!temperature->is_object()) ThrowInvalidInput("{}: expected an object", place);
    for (const auto& [name, value] : temperature->items()) {
      file.temperatures.Set(name, JsonAs<double>(value, name, place), place);
    }
  }
  return file;
}

void CheckDecisionFile(const DecisionFile& file, const DecisionTokenizer& tokenizer,
                       const std::string& name) {
  const std::vector<std::string> labels = tokenizer.LabelTexts();
  if (file.labels == labels) return;
  ThrowInvalidInput(
      "{}: key 'labels': found {}, but the tokenizer of this model has {}; the adapter "
      "is of another model",
      name, fmt::join(file.labels, " "), fmt::join(labels, " "));
}

}  // namespace qlora
