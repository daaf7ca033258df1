// Counter-based random numbers: a value depends on its key and index alone, never on who asked
// before. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#ifndef QLORA_BASE_RANDOM_H_
#define QLORA_BASE_RANDOM_H_

#include <array>
#include <cstdint>

namespace qlora {

// Names one stream of random numbers: the user's seed and a place (the use of the numbers).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t place = 0;
};

// The places that exist, so that no two uses share a stream. Shifted left by 48 bits; the low bits
// are free for (step, layer, linear ...).
enum class RandomPlace : std::uint64_t {
  kLoraInit = 1,
  kLoraDropout = 2,
  kShuffle = 3,
  kSampling = 4,
  kNeftune = 5,
  kTest = 6,
  kVerify = 7,
  kOptionOrder = 8,
  kBootstrap = 9,
};
constexpr RandomKey MakeKey(std::uint64_t seed, RandomPlace place, std::uint64_t detail = 0) {
  return {seed, (static_cast<std::uint64_t>(place) << 48) ^ detail};
}

// Returns four independent uniform 32-bit words number 4*index ... 4*index+3 of the stream. Not
// inline, so that it is optimised in programs of tests, which are not.
std::array<std::uint32_t, 4> RandomWords(RandomKey key, std::uint64_t index);

// Returns word number `index` of the stream.
inline std::uint32_t RandomWord(RandomKey key, std::uint64_t index) {
  return RandomWords(key, index / 4)[index % 4];
}

// Returns a uniform number in [0, 1), a multiple of 2^-24.
inline float RandomUniform(RandomKey key, std::uint64_t index) {
  return static_cast<float>(RandomWord(key, index) >> 8) * 0x1p-24f;
}

// Returns a uniform integer in [0, n), n > 0; biased by at most n * 2^-64. Uses its own words:
// 4*index ...
inline std::uint64_t RandomBelow(RandomKey key, std::uint64_t index, std::uint64_t n) {
  __extension__ using Wide = unsigned __int128;
  const auto words = RandomWords(key, index);
  const std::uint64_t wide = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<std::uint64_t>((static_cast<Wide>(wide) * n) >> 64);
}

// Returns a standard normal number (Box-Muller).
double RandomNormal(RandomKey key, std::uint64_t index);

}  // namespace qlora

#endif  // QLORA_BASE_RANDOM_H_
