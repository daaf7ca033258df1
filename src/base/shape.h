// Sizes of arrays that others give.
#ifndef QLORA_BASE_SHAPE_H_
#define QLORA_BASE_SHAPE_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace qlora {

// More values than any memory holds, and so few that their bits can be counted in 64 bits.
inline constexpr std::int64_t kMostValues = std::int64_t{1} << 48;

// Returns the number of values of a shape, 1 without a dimension. Errors (InvalidInput, beginning
// with `name`): a size below 0; more than kMostValues, also where another size is 0.
std::int64_t CountValues(std::string_view name, std::span<const std::int64_t> shape);

}  // namespace qlora

#endif  // QLORA_BASE_SHAPE_H_
