// How the scales of sub-blocks are packed, for decoders and encoders.
#ifndef QLORA_GGML_SUB_SCALES_H_
#define QLORA_GGML_SUB_SCALES_H_

#include <array>

#include "ggml/block_bytes.h"

namespace qlora {

using SubScales8 = std::array<int, 8>;
using SubScales16 = std::array<int, 16>;

struct ScalesAndMins {
  SubScales8 scales;  // in [0, 63], as the mins
  SubScales8 mins;
};

// Q4_K and Q5_K, 12 bytes:
//   bytes 0-3    scales 0-3 in 6 bits    the top 2 bits of scales 4-7
//   bytes 4-7    mins 0-3 in 6 bits      the top 2 bits of mins 4-7
//   bytes 8-11   the low nibbles of scales 4-7, then of mins 4-7
inline ScalesAndMins UnpackScalesAndMins(const std::byte* bytes) {
  // Four bytes at a time.
  const auto scales = LoadAt<std::uint32_t>(bytes);
  const auto mins = LoadAt<std::uint32_t>(bytes + 4);
  const auto low = LoadAt<std::uint32_t>(bytes + 8);
  constexpr std::uint32_t kSix = 0x3f3f3f3f;
  constexpr std::uint32_t kFour = 0x0f0f0f0f;
  constexpr std::uint32_t kTop = 0x30303030;
  const std::array<std::uint32_t, 4> words = {scales & kSix, (low & kFour) | (scales >> 2 & kTop),
                                              mins & kSix, (low >> 4 & kFour) | (mins >> 2 & kTop)};
  const auto unpacked = std::bit_cast<std::array<std::uint8_t, 16>>(words);
  ScalesAndMins out;
  for (int j = 0; j < 8; ++j) {
    out.scales[j] = unpacked[j];
    out.mins[j] = unpacked[8 + j];
  }
  return out;
}

inline void PackScalesAndMins(const ScalesAndMins& sub, std::byte* bytes) {
  for (int j = 0; j < 4; ++j) {
    bytes[j] = static_cast<std::byte>(sub.scales[j] | sub.scales[4 + j] >> 4 << 6);
    bytes[4 + j] = static_cast<std::byte>(sub.mins[j] | sub.mins[4 + j] >> 4 << 6);
    bytes[8 + j] = static_cast<std::byte>((sub.scales[4 + j] & 15) | (sub.mins[4 + j] & 15) << 4);
  }
}

// Q3_K, 12 bytes, scales in [-32, 31] plus 32: byte j % 8 has the low nibble of scale j (low for
// j < 8), and byte 8 + j % 4 its top 2 bits, from bit 2 (j / 4) on.
inline SubScales16 UnpackScalesQ3_K(const std::byte* bytes) {
  SubScales16 out;
  for (int j = 0; j < 16; ++j) {
    out[j] = (Bits(bytes[j % 8], j / 8 * 4, 4) | Bits(bytes[8 + j % 4], j / 4 * 2, 2) << 4) - 32;
  }
  return out;
}

inline void PackScalesQ3_K(const SubScales16& scales, std::byte* bytes) {
  for (int j = 0; j < 12; ++j) bytes[j] = std::byte{0};
  for (int j = 0; j < 16; ++j) {
    const int stored = scales[j] + 32;
    bytes[j % 8] |= static_cast<std::byte>((stored & 15) << (j / 8 * 4));
    bytes[8 + j % 4] |= static_cast<std::byte>(stored >> 4 << (j / 4 * 2));
  }
}

// IQ4_XS, 6 bytes, scales in [-32, 31] plus 32: a u16 of the top 2 bits, then the low nibbles.
inline SubScales8 UnpackScalesIQ4_XS(const std::byte* bytes) {
  const int top = LoadAt<std::uint16_t>(bytes);
  SubScales8 out;
  for (int j = 0; j < 8; ++j) {
    out[j] = (Bits(bytes[2 + j / 2], j % 2 * 4, 4) | (top >> (2 * j) & 3) << 4) - 32;
  }
  return out;
}

inline void PackScalesIQ4_XS(const SubScales8& scales, std::byte* bytes) {
  int top = 0;
  for (int j = 2; j < 6; ++j) bytes[j] = std::byte{0};
  for (int j = 0; j < 8; ++j) {
    const int stored = scales[j] + 32;
    top |= stored >> 4 << (2 * j);
    bytes[2 + j / 2] |= static_cast<std::byte>((stored & 15) << (j % 2 * 4));
  }
  StoreAt(bytes, static_cast<std::uint16_t>(top));
}

}  // namespace qlora

#endif  // QLORA_GGML_SUB_SCALES_H_
