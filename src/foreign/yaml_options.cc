#include "foreign/yaml_options.h"

#include <algorithm>

#include "base/check.h"
#include "foreign/yaml_text.h"
#include "io/json.h"

namespace qlora {
namespace {

bool IsList(const Option* option) {
  return option != nullptr && std::holds_alternative<std::vector<std::string>*>(option->value);
}

}  // namespace

std::optional<std::vector<std::string>> ItemsOfJson(std::string_view text,
                                                    std::string_view origin) {
  constexpr std::string_view kBlanks = " \t\n\r";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  if (!text.starts_with('[') || !text.ends_with(']')) return std::nullopt;
  Json list;
  const std::optional<JsonDefect> defect = TryParseJson(text, list);
  const bool is_plain = !defect && std::none_of(list.begin(), list.end(), [](const Json& item) {
    return item.is_structured() || item.is_null();
  });
  if (!is_plain) {
    // Patterns such as [a-z] are texts; a quote shows that JSON is meant.
    if (!text.substr(1).starts_with('"')) return std::nullopt;
    ThrowInvalidInput("{}: expected a JSON list of texts, [\"a, b\", \"c\"], found {}{}", origin,
                      text, defect ? ": " + defect->reason : "");
  }
  std::vector<std::string> items;
  for (const Json& item : list) {
    items.push_back(item.is_string() ? item.get<std::string>() : FormatJson(item));
  }
  return items;
}

void SetFromNode(OptionTable& table, const std::string& key, const YAML::Node& value,
                 const std::string& origin) {
  if (value.IsScalar()) {
    const std::string& text = value.Scalar();
    const auto listed = IsList(table.Find(key)) ? ItemsOfJson(text, origin) : std::nullopt;
    return listed ? table.Set(key, *listed, origin) : table.Set(key, text, origin);
  }
  std::vector<std::string> items;
  if (value.IsMap()) {
    const Option* option = table.Find(key);
    if (option != nullptr && TakesJson(*option)) {
      return table.Set(key, JsonText(value), origin);
    }
    if (option == nullptr || !TakesPairs(*option)) {
      ThrowInvalidInput("{}: '{}' holds a map, expected a value or a list; keys are not nested",
                        origin, key);
    }
    for (const auto& entry : value) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
        ThrowInvalidInput("{}: {} maps names to plain values", origin, key);
      }
      items.push_back(entry.first.Scalar() + "=" + entry.second.Scalar());
    }
    return table.Set(key, items, origin);
  }
  for (const YAML::Node& item : value) {
    if (!item.IsScalar()) ThrowInvalidInput("{}: a list of plain values is expected", origin);
    items.push_back(item.Scalar());
  }
  table.Set(key, items, origin);
}

bool TakesJson(const Option& option) { return option.name == "chat_template_kwargs"; }

bool TakesPairs(const Option& option) {
  return option.name == "rank_pattern" || option.name == "alpha_pattern";
}

}  // namespace qlora
