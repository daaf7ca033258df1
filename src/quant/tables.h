// Codebooks and decision thresholds of the 4-bit and 8-bit codes.
#ifndef QLORA_QUANT_TABLES_H_
#define QLORA_QUANT_TABLES_H_

#include <array>
#include <cstdint>

#include "qlora/nf4.h"

namespace qlora {

// The code of x is codes[number of thresholds strictly below x]; thresholds ascend.
struct EncodeTable {
  std::array<float, 15> thresholds;
  std::array<std::uint8_t, 16> codes;
  std::uint8_t zero_block_code;
};

// The rule must be one of bitsandbytes'.
const EncodeTable& EncodeTableOf(QuantType type, EncodeRule rule);

// The values of a codebook by nibble. torchao's are rounded to four decimals and then to `dtype`.
const std::array<float, 16>& CodebookOf(QuantType type, EncodeRule rule, DType dtype);

// bitsandbytes' 8-bit code for signed values: 256 ascending entries, 0 at index 127, from -0.99297
// to 1. For e = 0 .. 6 it has the 2^e midpoints of equal steps from 0.1 to 1, times 10^(e - 6),
// with both signs; and 0 and 1.
extern const std::array<float, 256> kSignedDynamicMap;
inline constexpr std::uint8_t kDynamicMapZero = 127;

}  // namespace qlora

#endif  // QLORA_QUANT_TABLES_H_
