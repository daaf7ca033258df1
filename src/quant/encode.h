// Encoding of one block: the definition, in scalar code, of what the vector kernels compute.
#ifndef QLORA_QUANT_ENCODE_H_
#define QLORA_QUANT_ENCODE_H_

#include <cstdint>

#include "qlora/nf4.h"
#include "quant/tables.h"

namespace qlora {

// float32 bits of the largest |x - shift| of n values; NaN or Inf among them gives at least
// kInfBits.
inline constexpr std::uint32_t kInfBits = 0x7f800000;
template <typename T>
std::uint32_t MaxMagnitudeBits(const T* x, std::int64_t n, float shift);

// How a value becomes the x that is compared with thresholds: (w - shift) * factor or / factor.
struct Normalizer {
  float shift = 0;
  float factor = 1;
  bool divide = false;
  bool zero_block = false;  // every value takes the code of a block of zeros

  float operator()(float w) const { return divide ? (w - shift) / factor : (w - shift) * factor; }
};

// The normalizer of a block with the given absmax, which may be replaced by the one to be stored.
// full: the block has block_size values.
Normalizer NormalizerOf(EncodeRule rule, bool full, float shift, float* absmax);

// Writes nibbles [first, first + n) of packed. When first is odd, the byte's high nibble is kept;
// when first + n is odd, the last low nibble is cleared.
template <typename T>
void EncodeSpan(const T* x, std::int64_t n, const Normalizer& normalize, const EncodeTable& table,
                std::uint8_t* packed, std::int64_t first);

// The same by torchao's rule: the first least |x / absmax - value|, each step rounded to T.
template <typename T>
void EncodeSpanTorchao(const T* x, std::int64_t n, float absmax, std::uint8_t* packed,
                       std::int64_t first);

inline void PutNibble(std::uint8_t* packed, std::int64_t index, std::uint8_t code) {
  std::uint8_t& byte = packed[index / 2];
  byte = static_cast<std::uint8_t>(index % 2 == 0 ? code << 4 : (byte & 0xf0) | code);
}

}  // namespace qlora

#endif  // QLORA_QUANT_ENCODE_H_
