#include "preference/reference_table.h"

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr const char* kAdvice =
    "the file is damaged: remove it, and the log-probabilities are measured again";

// A JSON number without a point is a whole one, which has no sign where it is 0.
std::string NumberText(double value) {
  return value == 0 ? (std::signbit(value) ? "-0.0" : "0.0") : fmt::format("{}", value);
}

std::uint64_t KeyFromHex(const std::string& text, const std::string& where) {
  std::uint64_t key = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), key, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    ThrowInvalidInput("{}: expected a key in hexadecimal, found '{}'; {}", where, text, kAdvice);
  }
  return key;
}

}  // namespace

const AnswerLogp& ReferenceTable::Of(std::uint64_t key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) ThrowRuntime("a sample without a measured reference");
  return found->second;
}

std::string ReferenceTable::ToText(const Json& model) const {
  std::string text = fmt::format("{{\"model\": {},\n\"logps\": {{", FormatJson(model));
  bool first = true;
  for (const auto& [key, value] : values_) {
    text += fmt::format("{}\n\"{:016x}\": [{}, {}]", first ? "" : ",", key,
                        NumberText(value.chosen), NumberText(value.rejected));
    first = false;
  }
  return text + "}}\n";
}

std::pair<ReferenceTable, Json> ReferenceTable::FromText(const std::string& text,
                                                         const std::string& where) {
  const auto fail = [&] {
    ThrowInvalidInput("{}: expected the log-probabilities of a reference; {}", where, kAdvice);
  };
  Json json;  // not an OrderedJson, whose objects have few keys
  if (TryParseJson(text, json) || !json.is_object() || !json["model"].is_object() ||
      !json["logps"].is_object()) {
    fail();
  }
  ReferenceTable table;
  for (const auto& [key, value] : json["logps"].items()) {
    const bool is_pair =
        value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
    if (!is_pair) fail();
    table.Add(KeyFromHex(key, where), {value[0].get<double>(), value[1].get<double>()});
  }
  return {std::move(table), std::move(json["model"])};
}

}  // namespace qlora
