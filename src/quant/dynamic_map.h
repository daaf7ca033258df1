// bitsandbytes' "dynamic" 8-bit code for values in [-1, 1], which has about the same relative
// precision over seven decades. Double quantization codes scales by it, and the 8-bit optimizers
// code first moments by it (moment_code.h).
#ifndef QLORA_QUANT_DYNAMIC_MAP_H_
#define QLORA_QUANT_DYNAMIC_MAP_H_

#include <array>
#include <cstdint>

namespace qlora {

// 256 ascending values from -0.99297 to 1, index = code:
//   0, 1, and +-10^(e - 6) (p[k] + p[k + 1]) / 2 for e = 0 ... 6, k = 0 ... 2^e - 1,
// where p[0] = 0.1 ... p[2^e] = 1 are equally spaced.
extern const std::array<float, 256> kSignedDynamicMap;
inline constexpr std::uint8_t kDynamicMapZero = 127;  // the code of 0

}  // namespace qlora

#endif  // QLORA_QUANT_DYNAMIC_MAP_H_
