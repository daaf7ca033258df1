#include "foreign/yaml_options.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "records/yaml_text.h"

namespace qlora {
namespace {

// The items of a JSON list of plain values as they are written, quotes included.
std::vector<std::string_view> SpellingsIn(std::string_view list) {
  std::vector<std::string_view> spellings;
  std::size_t begin = 1;
  bool quoted = false;
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (quoted && list[i] == '\\') {
      ++i;  // the character behind it ends no text
    } else if (list[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && (list[i] == ',' || list[i] == ']')) {
      spellings.push_back(Trim(list.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  return spellings;
}

}  // namespace

std::optional<std::vector<std::string>> ItemsOfJson(const Option& option, std::string_view text,
                                                    std::string_view origin) {
  if (!std::holds_alternative<std::vector<std::string>*>(option.value)) return std::nullopt;
  text = Trim(text);
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
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (option.is_path && !list.empty() && std::ranges::none_of(list, is_text)) return std::nullopt;
  const std::vector<std::string_view> spellings = SpellingsIn(text);
  std::vector<std::string> items;
  for (std::size_t i = 0; i < list.size(); ++i) {
    items.push_back(list[i].is_string() ? list[i].get<std::string>() : std::string(spellings[i]));
  }
  return items;
}

void SetFromNode(OptionTable& table, const std::string& key, const YAML::Node& value,
                 const std::string& origin) {
  if (value.IsScalar()) {
    const std::string& text = value.Scalar();
    const Option* option = table.Find(key);
    const auto listed = option == nullptr ? std::nullopt : ItemsOfJson(*option, text, origin);
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

OptionValue ValueFromNode(const Option& option, const YAML::Node& value,
                          const std::string& origin) {
  const auto read = [&](auto* place) {
    std::remove_pointer_t<decltype(place)> own{};
    OptionTable table;
    table.Add(option).value = &own;
    SetFromNode(table, option.name, value, origin);
    return OptionValue(std::move(own));
  };
  return std::visit(read, option.value);
}

bool TakesJson(const Option& option) { return option.name == "chat_template_kwargs"; }

bool TakesPairs(const Option& option) {
  return option.name == "rank_pattern" || option.name == "alpha_pattern";
}

}  // namespace qlora
