#include "model/gguf_keys.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {

std::vector<std::int64_t> GgufKeys::List(std::string_view key, std::int64_t blocks) const {
  const GgufValue* value = file_.values().Find(Name(key));
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) return {};
  std::vector<std::int64_t> list;
  const auto take = [&](const auto* values) {
    if (values != nullptr) list.assign(values->begin(), values->end());
  };
  take(std::get_if<std::vector<std::uint32_t>>(array));
  take(std::get_if<std::vector<std::int32_t>>(array));
  take(std::get_if<std::vector<bool>>(array));
  if (std::ssize(list) != blocks) {
    ThrowInvalidInput(
        "{}: key '{}': expected a number, or a list of {} numbers (one for each block), found {} "
        "of {} that are numbers",
        where(), Name(key), blocks, TypeNameOf(*value), list.size());
  }
  return list;
}

std::int64_t GgufKeys::IntOfLayers(std::string_view key, std::int64_t blocks,
                                   std::optional<std::int64_t> otherwise) const {
  const std::vector<std::int64_t> list = List(key, blocks);
  if (list.empty()) return otherwise ? Int(key, *otherwise) : Int(key);
  if (std::ranges::adjacent_find(list, std::not_equal_to()) != list.end()) {
    ThrowInvalidInput("{}: key '{}' differs between layers, which is not supported", where(),
                      Name(key));
  }
  return list.front();
}

}  // namespace qlora
