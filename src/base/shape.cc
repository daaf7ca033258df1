#include "base/shape.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"

namespace qlora {

std::int64_t CountValues(std::string_view name, std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      ThrowInvalidInput("{}: shape ({}) has a size below 0", name, fmt::join(shape, ", "));
    empty = empty || size == 0;
    // Counted without the zeros, so that sums of the sizes cannot overflow either.
    const std::int64_t factor = std::max<std::int64_t>(size, 1);
    if (factor > kMostValues / product) {
      ThrowInvalidInput("{}: shape ({}) has more than 2^48 values", name, fmt::join(shape, ", "));
    }
    product *= factor;
  }
  return empty ? 0 : product;
}

}  // namespace qlora
