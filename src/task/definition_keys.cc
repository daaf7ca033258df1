#include "task/definition_keys.h"

#include "base/check.h"

namespace qlora {

void DefinitionKeys::Refuse(std::string_view key, std::string_view reason) const {
  ThrowInvalidInput("{}: {}: {}", where_, key, reason);
}

const OrderedJson* DefinitionKeys::Find(std::string_view key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

OrderedJson DefinitionKeys::Field(std::string_view key) const {
  const OrderedJson* value = Find(key);
  return value == nullptr ? OrderedJson(nullptr) : *value;
}

std::string DefinitionKeys::TextOr(std::string_view key, std::string otherwise) const {
  const OrderedJson* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) Refuse(key, "expected a text");
  return value->get<std::string>();
}

std::int64_t DefinitionKeys::Number(std::string_view key, std::int64_t otherwise) const {
  const OrderedJson* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer() || value->get<std::int64_t>() < 0) {
    Refuse(key, "expected a whole number");
  }
  return value->get<std::int64_t>();
}

bool HoldsName(std::string_view names, std::string_view name) {
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

std::string FunctionOf(const OrderedJson& value) {
  return value.is_object() ? value.value("!function", "") : "";
}

}  // namespace qlora
