// Numbers at any address of a block.
#ifndef QLORA_GGML_BLOCK_BYTES_H_
#define QLORA_GGML_BLOCK_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "qlora/tensor.h"

namespace qlora {

static_assert(std::endian::native == std::endian::little);

template <typename T>
T LoadAt(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void StoreAt(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// As ToFloat(Float16), without branches on the way of finite numbers: its 15 bits as those of a
// float32 are too small by the difference of the two biases, 112.
inline float HalfAt(const std::byte* at) {
  const auto bits = LoadAt<std::uint16_t>(at);
  const std::uint32_t magnitude = std::uint32_t{bits & 0x7fffu} << 13;
  const std::uint32_t value =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const bool is_finite = magnitude < 0x7c00u << 13;
  return std::bit_cast<float>(sign | (is_finite ? value : magnitude + (112u << 23) * 2));
}

// 2^(e - 128), exact also where it is subnormal; e = 255 is 2^127, no NaN.
constexpr float HalfOfE8m0(std::byte scale) {
  const auto e = std::to_integer<std::uint32_t>(scale);
  return std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

constexpr int Bits(std::byte byte, int first, int count) {
  return std::to_integer<int>(byte) >> first & ((1 << count) - 1);
}
constexpr int LowNibble(std::byte byte) { return Bits(byte, 0, 4); }
constexpr int HighNibble(std::byte byte) { return Bits(byte, 4, 4); }

}  // namespace qlora

#endif  // QLORA_GGML_BLOCK_BYTES_H_
