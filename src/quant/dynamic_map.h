// bitsandbytes' "dynamic" 8-bit code, which has about the same relative precision over seven
// decades (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861).
// Double quantization codes scales with the signed map. Optimizer state: the values of a block of
// 256 divided by their largest absolute value, each as the index of the nearest entry of a map.
#ifndef QLORA_QUANT_DYNAMIC_MAP_H_
#define QLORA_QUANT_DYNAMIC_MAP_H_

#include <array>
#include <cstdint>

namespace qlora {

inline constexpr std::int64_t kDynamicBlock = 256;

class DynamicMap {
 public:
  // The index of 0 in the signed map.
  static constexpr std::uint8_t kZero = 127;

  // For values of both signs (scales, first moments), and for values >= 0 (second moments).
  static const DynamicMap& Signed();
  static const DynamicMap& Unsigned();

  // 256 ascending entries, index = code:
  //   0, 1, and [+-] 10^(e - 6) (p[k] + p[k + 1]) / 2 for e = 0 ... 6, k = 0 ... count - 1,
  // where p[0] = 0.1 ... p[count] = 1 are equally spaced; count is 2^e, or 2^(e + 1) in the
  // unsigned map. +1 has a code and -1 has none, so the signed map reaches from -0.99297 to 1, and
  // a block whose extreme is negative shrinks a little each time.
  const std::array<float, 256>& values() const { return values_; }

  // out[i] = values()[codes[i]] * scale.
  void Decode(const std::uint8_t* codes, float scale, std::int64_t n, float* out) const;
  // Codes of n finite values; returns the scale, max |x|. The nearest entry, an even index on a
  // tie; but a negative value never becomes 0, and neither does a value of the unsigned map, which
  // is divided by: bitsandbytes lets it, and an update can then be huge. All zeros: the code of 0.
  float Encode(const float* x, std::int64_t n, std::uint8_t* codes) const;

 private:
  explicit DynamicMap(bool both_signs);
  std::uint8_t Nearest(float x) const;

  std::array<float, 256> values_;
  std::array<float, 255> midpoints_;
};

}  // namespace qlora

#endif  // QLORA_QUANT_DYNAMIC_MAP_H_
