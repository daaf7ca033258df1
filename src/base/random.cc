#include "base/random.h"

#include <cmath>
#include <numbers>

namespace qlora {

double RandomNormal(RandomKey key, std::uint64_t index) {
  // Box-Muller: sqrt(-2 ln u) cos(2 pi v). The half keeps u away from 0, whose logarithm is
  // infinite. Only the cosine is used, so that index i depends on nothing but i.
  const auto w = RandomWords(key, index);
  const double u = (static_cast<double>(w[0]) + 0.5) * 0x1p-32;  // in (0, 1)
  const double v = static_cast<double>(w[1]) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace qlora
