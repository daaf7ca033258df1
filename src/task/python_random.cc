#include "task/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_set>

#include "base/check.h"

namespace qlora {

// init_by_array of the words of the seed.
PythonRandom::PythonRandom(std::int64_t seed) {
  const std::uint64_t size = seed < 0 ? 0 - static_cast<std::uint64_t>(seed) : seed;
  std::vector<std::uint32_t> key = {static_cast<std::uint32_t>(size)};
  if (size >> 32 != 0) key.push_back(static_cast<std::uint32_t>(size >> 32));
  Mix(19650218);
  std::size_t i = 1;
  std::size_t j = 0;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  const auto before = [&] { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (std::size_t k = std::max(kWords, key.size()); k > 0; --k) {
    state_[i] = (state_[i] ^ (before() * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
    j = (j + 1) % key.size();
  }
  for (std::size_t k = kWords - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ (before() * 1566083941U)) - static_cast<std::uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::Mix(std::uint32_t seed) {
  state_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
}

std::uint32_t PythonRandom::Next() {
  constexpr std::size_t kShift = 397;
  if (at_ == kWords) {
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7FFFFFFFU);
      state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908B0DFU : 0);
    }
    at_ = 0;
  }
  std::uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9D2C5680U;
  y ^= (y << 15) & 0xEFC60000U;
  return y ^ (y >> 18);
}

// getrandbits of as many bits as n has, until the number is below n. n < 2^32.
std::int64_t PythonRandom::Below(std::int64_t n) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(n));
  std::int64_t drawn = n;
  while (drawn >= n) drawn = Next() >> (32 - bits);
  return drawn;
}

// Few of many are drawn until they differ, many of few from a list that shrinks; Python decides by
// the memory that each would take.
std::vector<std::int64_t> PythonRandom::Sample(std::int64_t n, std::int64_t k) {
  if (k > n) ThrowInvalidInput("{} examples cannot be drawn from {} records", k, n);
  std::int64_t set_size = 21;
  if (k > 5) {
    std::int64_t table = 4;
    while (table < 3 * k) table *= 4;
    set_size += table;
  }
  std::vector<std::int64_t> drawn;
  if (n <= set_size) {
    std::vector<std::int64_t> pool(n);
    std::iota(pool.begin(), pool.end(), 0);
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t j = Below(n - i);
      drawn.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return drawn;
  }
  std::unordered_set<std::int64_t> seen;
  while (std::ssize(drawn) < k) {
    const std::int64_t j = Below(n);
    if (seen.insert(j).second) drawn.push_back(j);
  }
  return drawn;
}

}  // namespace qlora
