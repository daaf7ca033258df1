#include "base/random.h"

#include <cmath>
#include <numbers>

namespace qlora {

std::array<std::uint32_t, 4> RandomWords(RandomKey key, std::uint64_t index) {
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
      static_cast<std::uint32_t>(key.place), static_cast<std::uint32_t>(key.place >> 32)};
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

double RandomNormal(RandomKey key, std::uint64_t index) {
  // Box-Muller: sqrt(-2 ln u) cos(2 pi v). The half keeps u away from 0, whose logarithm is
  // infinite. Only the cosine is used, so that index i depends on nothing but i.
  const auto w = RandomWords(key, index);
  const double u = (static_cast<double>(w[0]) + 0.5) * 0x1p-32;  // in (0, 1)
  const double v = static_cast<double>(w[1]) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace qlora
