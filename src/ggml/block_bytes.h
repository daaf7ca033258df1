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

inline float HalfAt(const std::byte* at) { return ToFloat(LoadAt<Float16>(at)); }

constexpr int Bits(std::byte byte, int first, int count) {
  return std::to_integer<int>(byte) >> first & ((1 << count) - 1);
}
constexpr int LowNibble(std::byte byte) { return Bits(byte, 0, 4); }
constexpr int HighNibble(std::byte byte) { return Bits(byte, 4, 4); }

}  // namespace qlora

#endif  // QLORA_GGML_BLOCK_BYTES_H_
