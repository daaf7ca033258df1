#include "data/data_slice.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace qlora {
namespace {

// "1000", "-5", "10%", "" (no bound); false for any other text.
bool ParseBound(std::string_view text, std::optional<DataSlice::Bound>& bound) {
  if (text.empty()) return true;
  DataSlice::Bound parsed;
  parsed.is_percent = text.back() == '%';
  if (parsed.is_percent) text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed.value,
                                            std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (!std::isfinite(parsed.value)) return false;
  // Half a record does not exist.
  if (!parsed.is_percent && parsed.value != std::trunc(parsed.value)) return false;
  bound = parsed;
  return true;
}

std::int64_t PlaceOf(const DataSlice::Bound& bound, std::int64_t records) {
  const auto all = static_cast<double>(records);
  double place = bound.is_percent ? std::round(bound.value / 100 * all) : bound.value;
  if (place < 0) place += all;
  return std::llround(std::clamp(place, 0.0, all));
}

}  // namespace

std::pair<std::int64_t, std::int64_t> DataSlice::Of(std::int64_t records) const {
  const std::int64_t first = begin ? PlaceOf(*begin, records) : 0;
  return {first, std::max(first, end ? PlaceOf(*end, records) : records)};
}

std::optional<DataSlice> TakeSlice(std::string& text) {
  const std::size_t open = text.rfind('[');
  if (open == std::string::npos || !text.ends_with(']')) return std::nullopt;
  const std::string_view inside = std::string_view(text).substr(open + 1, text.size() - open - 2);
  const std::size_t colon = inside.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  DataSlice slice;
  const bool is_slice = ParseBound(inside.substr(0, colon), slice.begin) &&
                        ParseBound(inside.substr(colon + 1), slice.end);
  if (!is_slice) return std::nullopt;
  text.resize(open);
  return slice;
}

}  // namespace qlora
