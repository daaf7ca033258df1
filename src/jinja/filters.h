// What the two files of filters share.
#ifndef QLORA_JINJA_FILTERS_H_
#define QLORA_JINJA_FILTERS_H_

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace qlora::jinja {

struct FilterCall {
  Runtime& runtime;
  std::string_view name;
  const Value& value;
  Arguments arguments;

  std::vector<std::optional<Value>> Take(std::initializer_list<std::string_view> names,
                                         std::size_t required = 0) {
    return Bind(name, std::move(arguments), names, required);
  }
  std::string Text() const { return Str(runtime, value); }
};

struct FilterEntry {
  std::string_view name;
  Value (*function)(FilterCall&);
};

// The filters of sequences.
std::span<const FilterEntry> ListFilters();

inline bool IsGiven(const std::optional<Value>& value) { return value && !IsNone(*value); }

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_FILTERS_H_
