#include "task/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_set>

#include "base/check.h"

namespace qlora {

namespace {

// A seed sequence that gives the engine the state of init_by_array.
struct SeedOfWords {
  using result_type = std::uint32_t;

  void generate(std::uint32_t* state, const std::uint32_t* end) const {
    const std::size_t count = end - state;
    std::size_t i = 1;
    const auto before = [&] { return state[i - 1] ^ (state[i - 1] >> 30); };
    const auto advance = [&] {
      if (++i < count) return;
      state[0] = state[count - 1];
      i = 1;
    };
    state[0] = 19650218;
    for (; i < count; ++i) state[i] = 1812433253U * before() + static_cast<std::uint32_t>(i);
    i = 1;
    for (std::size_t k = 0; k < std::max(count, words.size()); ++k) {
      const std::size_t j = k % words.size();
      state[i] = (state[i] ^ (before() * 1664525U)) + words[j] + static_cast<std::uint32_t>(j);
      advance();
    }
    for (std::size_t k = 1; k < count; ++k) {
      state[i] = (state[i] ^ (before() * 1566083941U)) - static_cast<std::uint32_t>(i);
      advance();
    }
    state[0] = 0x80000000U;
  }

  std::vector<std::uint32_t> words;
};

}  // namespace

PythonRandom::PythonRandom(std::int64_t seed) {
  const std::uint64_t size = seed < 0 ? 0 - static_cast<std::uint64_t>(seed) : seed;
  SeedOfWords sequence{{static_cast<std::uint32_t>(size)}};
  if (size >> 32 != 0) sequence.words.push_back(static_cast<std::uint32_t>(size >> 32));
  engine_.seed(sequence);
}

// getrandbits of as many bits as n has, until the number is below n. n < 2^32.
std::int64_t PythonRandom::Below(std::int64_t n) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(n));
  std::int64_t drawn = n;
  while (drawn >= n) drawn = static_cast<std::int64_t>(engine_() >> (32 - bits));
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
