#include "quant/dynamic_map.h"

#include <algorithm>
#include <cmath>

namespace qlora {
namespace {

// The midpoints of `count` equal steps from 0.1 to 1, times 10^exponent, with the float32 roundings
// of the tables that bitsandbytes makes (points from the nearer end, by fused multiply-add).
void AppendDecade(int count, int exponent, float*& out) {
  const float step = (1.0f - 0.1f) / static_cast<float>(count);
  const auto point = [&](int k) {
    return k < (count + 1) / 2 ? std::fma(step, static_cast<float>(k), 0.1f)
                               : std::fma(-step, static_cast<float>(count - k), 1.0f);
  };
  const auto power = static_cast<float>(std::pow(10.0, exponent));
  for (int k = 0; k < count; ++k) *out++ = (point(k) + point(k + 1)) / 2 * power;
}

// 0, seven decades of 1, 2 ... 64 entries of each sign or of 2, 4 ... 128 entries, and 1.
std::array<float, 256> Values(bool both_signs) {
  constexpr int kDecades = 7;
  std::array<float, 256> values;
  float* const zero = values.data() + (both_signs ? DynamicMap::kZero : 0);
  float* out = zero;
  *out++ = 0;
  for (int e = 0; e < kDecades; ++e) AppendDecade((both_signs ? 1 : 2) << e, e - kDecades + 1, out);
  // The seven decades of midpoints end below 1, so the largest value of a block has a separate
  // entry.
  *out = 1;
  // index   0 ... 126 | 127 | 128 ... 254 | 255
  // value  -0.99 ...  |  0  |  ... 0.99   |  1      -1 has no entry: 256 is even
  for (float* x = values.data(); x < zero; ++x) *x = -zero[zero - x];
  return values;
}

}  // namespace

DynamicMap::DynamicMap(bool both_signs) : values_(Values(both_signs)) {
  for (std::size_t k = 0; k < midpoints_.size(); ++k) {
    midpoints_[k] = (values_[k] + values_[k + 1]) / 2;
  }
}

const DynamicMap& DynamicMap::Signed() {
  static const DynamicMap map(true);
  return map;
}

const DynamicMap& DynamicMap::Unsigned() {
  static const DynamicMap map(false);
  return map;
}

void DynamicMap::Decode(const std::uint8_t* codes, float scale, std::int64_t n, float* out) const {
  for (std::int64_t i = 0; i < n; ++i) out[i] = values_[codes[i]] * scale;
}

// Counts midpoints below x by bisection in eight steps; exactly on a midpoint, the even neighbour.
std::uint8_t DynamicMap::Nearest(float x) const {
  const float* base = midpoints_.data();
  std::size_t below = 0;  // midpoints that are known to be below x
  for (std::size_t half = 128; half > 0; half /= 2) below += base[below + half - 1] < x ? half : 0;
  if (below < midpoints_.size() && base[below] == x && below % 2 == 1) ++below;
  return static_cast<std::uint8_t>(below);
}

float DynamicMap::Encode(const float* x, std::int64_t n, std::uint8_t* codes) const {
  float scale = 0;
  // All zeros have the scale 0, for which x / scale is not asked.
  for (std::int64_t i = 0; i < n; ++i) scale = std::max(scale, std::abs(x[i]));
  const std::uint8_t zero = Nearest(0);
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t code = scale > 0 ? Nearest(x[i] / scale) : zero;
    // The rule of the header: the sign of a moment survives, and the divisor does not become 0.
    if (x[i] < 0 && code >= zero) --code;
    if (x[i] > 0 && code == zero && zero == 0) ++code;
    codes[i] = code;
  }
  return scale;
}

}  // namespace qlora
