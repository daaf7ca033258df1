// Codes to bytes: the inverse of what the decoders unpack.
#ifndef QLORA_GGML_PACK_H_
#define QLORA_GGML_PACK_H_

#include "ggml/block_bytes.h"
#include "ggml/codebooks.h"

namespace qlora {

inline void StoreHalf(std::byte* at, float value) { StoreAt(at, ToFloat16(value)); }

// code + zero of codes that are integers.
template <int kCount>
std::array<std::uint8_t, kCount> CodeBytes(const float* codes, int zero) {
  std::array<std::uint8_t, kCount> out;
  for (int i = 0; i < kCount; ++i) {
    out[i] = static_cast<std::uint8_t>(static_cast<int>(codes[i]) + zero);
  }
  return out;
}

// The places in the table of values that it has; of equal ones the first.
template <int kCount>
std::array<std::uint8_t, kCount> PlacesIn(const Codebook& book, const float* values) {
  std::array<std::uint8_t, 256> place_of{};
  for (int k = 15; k >= 0; --k) place_of[book[k] + 128] = static_cast<std::uint8_t>(k);
  std::array<std::uint8_t, kCount> out;
  for (int i = 0; i < kCount; ++i) out[i] = place_of[static_cast<int>(values[i]) + 128];
  return out;
}

// The low four bits of 2n codes, as UnpackNibbles reads them.
inline void PackNibbles(const std::uint8_t* codes, int n, std::byte* out) {
  for (int i = 0; i < n; ++i) {
    out[i] = static_cast<std::byte>((codes[i] & 15) | (codes[n + i] & 15) << 4);
  }
}

// Two bits of 256 codes, from bit `first` on, as UnpackTwoBits reads them.
inline void PackTwoBits(const std::uint8_t* codes, int first, std::byte* out) {
  for (int i = 0; i < 64; ++i) {
    int byte = 0;
    for (int row = 0; row < 4; ++row) {
      byte |= (codes[i / 32 * 128 + 32 * row + i % 32] >> first & 3) << (2 * row);
    }
    out[i] = static_cast<std::byte>(byte);
  }
}

// Bit `place` of 256 codes, as AddHighBits reads them: that of code 32 * row + i is bit `row` of
// byte i.
inline void PackHighBits(const std::uint8_t* codes, int place, std::byte* out) {
  for (int i = 0; i < 32; ++i) {
    int byte = 0;
    for (int row = 0; row < 8; ++row) byte |= (codes[32 * row + i] >> place & 1) << row;
    out[i] = static_cast<std::byte>(byte);
  }
}

}  // namespace qlora

#endif  // QLORA_GGML_PACK_H_
