#include "config/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace qlora {

std::vector<std::int64_t> GgufKeys::List(std::string_view key, std::int64_t count) const {
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
  if (std::ssize(list) != count) {
    ThrowInvalidInput(
        "{}: key '{}': expected a number, or a list of {} numbers (one for each block), found {} "
        "of {} that are numbers",
        where(), Name(key), count, TypeNameOf(*value), list.size());
  }
  return list;
}

double GgufKeys::Positive(std::string_view key, std::optional<double> otherwise) const {
  const double value = otherwise ? Double(key, *otherwise) : Double(key);
  if (!(value > 0 && std::isfinite(value))) {
    ThrowInvalidInput("{}: {} is {}, expected a positive number", where(), key, value);
  }
  return value;
}

std::vector<std::int64_t> GgufKeys::OfBlocks(std::string_view key) const {
  std::vector<std::int64_t> list = List(key, blocks());
  if (list.empty()) list.assign(blocks(), Int(key));
  return list;
}

std::int64_t GgufKeys::IntOfBlocks(std::string_view key,
                                   std::optional<std::int64_t> otherwise) const {
  const std::vector<std::int64_t> list = List(key, blocks());
  if (list.empty()) return otherwise ? Int(key, *otherwise) : Int(key);
  if (std::ranges::adjacent_find(list, std::not_equal_to()) != list.end()) {
    ThrowInvalidInput("{}: key '{}' differs between layers, which is not supported", where(),
                      Name(key));
  }
  return list.front();
}

}  // namespace qlora
