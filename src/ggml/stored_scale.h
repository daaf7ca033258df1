// Scales as files store them.
#ifndef QLORA_GGML_STORED_SCALE_H_
#define QLORA_GGML_STORED_SCALE_H_

#include <algorithm>
#include <array>
#include <cmath>

#include "qlora/tensor.h"

namespace qlora {

inline constexpr float kLargestHalf = 65504;

// A gain must be larger by this factor, which is more than what sums round. So of many fits that
// are exact, equal groups take the same.
inline constexpr float kClearly = 1.000001f;

// The float16 nearest to x, of finite ones.
inline float NearestHalf(float x) {
  return ToFloat(ToFloat16(std::clamp(x, -kLargestHalf, kLargestHalf)));
}

// That float16 and its two neighbours.
inline std::array<float, 3> HalvesAround(float x) {
  const Float16 nearest = ToFloat16(std::clamp(x, -kLargestHalf, kLargestHalf));
  const auto moved = [&](int by) {
    const int magnitude = std::clamp((nearest.bits & 0x7fff) + by, 0, 0x7bff);
    return ToFloat(Float16{static_cast<std::uint16_t>((nearest.bits & 0x8000) | magnitude)});
  };
  return {moved(0), moved(-1), moved(1)};
}

// 1 / scale, or 0 where every value is to get the code of 0.
inline float InverseOf(float scale) {
  // Below, an inverse could be infinite; and a float16 that is not 0 is above.
  return std::abs(scale) < 1e-15f ? 0 : 1 / scale;
}

}  // namespace qlora

#endif  // QLORA_GGML_STORED_SCALE_H_
