// Encoders of the formats with two levels of scales. Included once per target.
#if defined(QLORA_GGML_SUPER_ENCODERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_SUPER_ENCODERS_INL_H_
#undef QLORA_GGML_SUPER_ENCODERS_INL_H_
#else
#define QLORA_GGML_SUPER_ENCODERS_INL_H_
#endif

#include "ggml/pack.h"
#include "ggml/sub_scales.h"
#include "ggml/super_affine-inl.h"
#include "ggml/super_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// codes (256) of the chosen scales.
template <int kGroups, class Codes>
HWY_INLINE void CodesOf(const Codes& codes, const SuperScales<kGroups>& scales, const float* x,
                        const float* w, float* out) {
  constexpr int kSize = 256 / kGroups;
  for (int j = 0; j < kGroups; ++j) {
    const int at = j * kSize;
    CodesAt<kSize>(codes, x + at, w + at, scales.d * static_cast<float>(scales.levels[j]),
                   out + at);
  }
}

template <int kGroups>
HWY_INLINE std::array<std::uint8_t, 256> CodesOf(const SuperAffineSearch<kGroups>& search,
                                                 const SuperAffine<kGroups>& result) {
  float codes[256];
  for (int j = 0; j < kGroups; ++j) {
    search.group(j).CodesAt(result.d * static_cast<float>(result.scales[j]),
                            -result.d_min * static_cast<float>(result.mins[j]),
                            codes + j * (256 / kGroups));
  }
  return CodeBytes<256>(codes, 0);
}

inline void EncodeQ2_K(const float* x, const float* w, std::byte* block) {
  SuperAffineSearch<16> search(3, 15, x, w);
  const SuperAffine<16> result = search.Run();
  for (int j = 0; j < 16; ++j) {
    block[j] = static_cast<std::byte>(result.scales[j] | result.mins[j] << 4);
  }
  PackTwoBits(CodesOf(search, result).data(), 0, block + 16);
  StoreHalf(block + 80, result.d);
  StoreHalf(block + 82, result.d_min);
}

inline void EncodeQ3_K(const float* x, const float* w, std::byte* block) {
  constexpr EvenCodes kCodes{-4, 3};
  const SuperScales<16> scales = SuperScaleSearch<16, EvenCodes>(kCodes, {-32, 31}, x, w).Run();
  float nearest[256];
  CodesOf(kCodes, scales, x, w, nearest);
  const auto codes = CodeBytes<256>(nearest, 4);
  PackHighBits(codes.data(), 2, block);
  PackTwoBits(codes.data(), 0, block + 32);
  PackScalesQ3_K(scales.levels, block + 96);
  StoreHalf(block + 108, scales.d);
}

// The first 16 bytes of Q4_K and Q5_K: d, dmin, scales and minima. Returns the codes, of 0 to
// `levels`.
inline std::array<std::uint8_t, 256> EncodeFourOrFiveBits(int levels, const float* x,
                                                          const float* w, std::byte* block) {
  SuperAffineSearch<8> search(levels, 63, x, w);
  const SuperAffine<8> result = search.Run();
  StoreHalf(block, result.d);
  StoreHalf(block + 2, result.d_min);
  PackScalesAndMins({result.scales, result.mins}, block + 4);
  return CodesOf(search, result);
}

inline void EncodeQ4_K(const float* x, const float* w, std::byte* block) {
  const auto codes = EncodeFourOrFiveBits(15, x, w, block);
  for (int g = 0; g < 4; ++g) PackNibbles(codes.data() + 64 * g, 32, block + 16 + 32 * g);
}

inline void EncodeQ5_K(const float* x, const float* w, std::byte* block) {
  const auto codes = EncodeFourOrFiveBits(31, x, w, block);
  PackHighBits(codes.data(), 4, block + 16);
  for (int g = 0; g < 4; ++g) PackNibbles(codes.data() + 64 * g, 32, block + 48 + 32 * g);
}

inline void EncodeQ6_K(const float* x, const float* w, std::byte* block) {
  constexpr EvenCodes kCodes{-32, 31};
  const SuperScales<16> scales = SuperScaleSearch<16, EvenCodes>(kCodes, {-128, 127}, x, w).Run();
  float nearest[256];
  CodesOf(kCodes, scales, x, w, nearest);
  const auto codes = CodeBytes<256>(nearest, 32);
  PackNibbles(codes.data(), 64, block);
  PackNibbles(codes.data() + 128, 64, block + 64);
  PackTwoBits(codes.data(), 4, block + 128);
  for (int j = 0; j < 16; ++j) {
    StoreAt(block + 192 + j, static_cast<std::int8_t>(scales.levels[j]));
  }
  StoreHalf(block + 208, scales.d);
}

inline void EncodeIQ4_XS(const float* x, const float* w, std::byte* block) {
  const SuperScales<8> scales =
      SuperScaleSearch<8, decltype(kIq4Codes)>(kIq4Codes, {-32, 31}, x, w).Run();
  float nearest[256];
  CodesOf(kIq4Codes, scales, x, w, nearest);
  const auto codes = PlacesIn<256>(kIq4Values, nearest);
  StoreHalf(block, scales.d);
  PackScalesIQ4_XS(scales.levels, block + 2);
  for (int g = 0; g < 8; ++g) PackNibbles(codes.data() + 32 * g, 16, block + 8 + 16 * g);
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
