// The numbers of base/random.h in kernels, bit for bit.
#ifndef QLORA_BACKEND_CUDA_PHILOX_H_
#define QLORA_BACKEND_CUDA_PHILOX_H_

#include "backend/cuda/elements.h"
#include "base/random.h"

namespace qlora::cuda {

// RandomWords: words 4 * index ... 4 * index + 3 of the stream.
GPU_INLINE uint4 PhiloxWords(const RandomKey& key, std::uint64_t index) {
  uint4 c = make_uint4(static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(key.place),
                       static_cast<std::uint32_t>(key.place >> 32));
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

GPU_INLINE float UniformOf(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// RandomUniform of index, index + 1 ... Groups of four share the words of one call; a chunk that
// does not begin with a group has parts of three.
//
//   index:  | . a b c | d e f g | h . . . |      shift 1
GPU_INLINE void UniformChunk(const RandomKey& key, std::uint64_t index, float (&u)[kChunk]) {
  const auto shift = static_cast<unsigned>(index % 4);
  uint4 a = PhiloxWords(key, index / 4);
  uint4 b = PhiloxWords(key, index / 4 + 1);
  const uint4 c = shift == 0 ? b : PhiloxWords(key, index / 4 + 2);
  std::uint32_t w[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
  if ((shift & 1) != 0) {
#pragma unroll
    for (int i = 0; i < 11; ++i) w[i] = w[i + 1];
  }
  if ((shift & 2) != 0) {
#pragma unroll
    for (int i = 0; i < 10; ++i) w[i] = w[i + 2];
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) u[i] = UniformOf(w[i]);
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_PHILOX_H_
