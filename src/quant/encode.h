// Encoding of one block: the definition of the vector kernels, in scalar code.
#ifndef QLORA_QUANT_ENCODE_H_
#define QLORA_QUANT_ENCODE_H_

#include <cstdint>

#include "quant/encode_table.h"

namespace qlora {

// float32 bits of the largest magnitude of n values; NaN or Inf among them gives at least kInfBits.
inline constexpr std::uint32_t kInfBits = 0x7f800000;
template <typename T>
std::uint32_t MaxMagnitudeBits(const T* x, std::int64_t n);

// Makes of a weight the x that is compared with thresholds: w * factor or w / factor.
struct Normalizer {
  float factor = 1;
  bool divide = false;
  bool zero_block = false;  // every value takes the code of a block of zeros

  float operator()(float w) const { return divide ? w / factor : w * factor; }
};

// Scales are at least this where they divide, so that reciprocals stay finite.
inline constexpr float kLeastDivisor = 1e-38f;

// The normalizer of a block with the given absmax, which may be replaced by the one to be stored.
// full: the block has block_size values.
Normalizer NormalizerOf(const EncodeTable& table, bool full, float* absmax);

// Writes nibbles [first, first + n) of packed. When first is odd, the byte's high nibble is kept;
// when first + n is odd, the last low nibble is cleared.
template <typename T>
void EncodeSpan(const T* x, std::int64_t n, const Normalizer& normalize, const EncodeTable& table,
                std::uint8_t* packed, std::int64_t first);

// The nibble that follows an odd number of codes: the code of 0.
constexpr std::uint8_t OddNibble(QuantType type) { return type == QuantType::kNf4 ? 7 : 0; }

inline void PutNibble(std::uint8_t* packed, std::int64_t index, std::uint8_t code) {
  std::uint8_t& byte = packed[index / 2];
  byte = static_cast<std::uint8_t>(index % 2 == 0 ? code << 4 : (byte & 0xf0) | code);
}

}  // namespace qlora

#endif  // QLORA_QUANT_ENCODE_H_
