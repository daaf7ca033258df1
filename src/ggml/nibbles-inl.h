// Codes of 4 bits. Included once per target.
#if defined(QLORA_GGML_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_GGML_NIBBLES_INL_H_
#undef QLORA_GGML_NIBBLES_INL_H_
#else
#define QLORA_GGML_NIBBLES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "ggml/block_bytes.h"
#include "ggml/codebooks.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls put(first, codes) with the low nibbles of kBytes bytes and with the high ones, which follow
// them as codes: `first` is 0 and then kBytes.
template <int kBytes, class Put>
HWY_INLINE void ForNibbles(const std::byte* HWY_RESTRICT packed, const Put& put) {
  std::uint8_t low[kBytes];
  std::uint8_t high[kBytes];
  for (int i = 0; i < kBytes; ++i) low[i] = static_cast<std::uint8_t>(LowNibble(packed[i]));
  put(0, low);
  for (int i = 0; i < kBytes; ++i) high[i] = static_cast<std::uint8_t>(HighNibble(packed[i]));
  put(kBytes, high);
}

// codes (2 * kBytes) in that order.
template <int kBytes>
HWY_INLINE void UnpackNibbles(const std::byte* HWY_RESTRICT packed,
                              std::uint8_t* HWY_RESTRICT codes) {
  ForNibbles<kBytes>(packed, [&](int first, const std::uint8_t* part) {
    std::memcpy(codes + first, part, kBytes);
  });
}

// values (2 * kBytes) = scale * book[code]
template <int kBytes>
HWY_INLINE void DecodeCodebook(const Codebook& book, float scale,
                               const std::byte* HWY_RESTRICT packed, float* HWY_RESTRICT values) {
  ForNibbles<kBytes>(packed, [&](int first, const std::uint8_t* codes) HWY_ATTR {
    std::int8_t found[kBytes];
#if HWY_TARGET == HWY_SCALAR
    for (int i = 0; i < kBytes; ++i) found[i] = book[codes[i]];
#else
    const hn::FixedTag<std::int8_t, 16> tag;
    const hn::FixedTag<std::int8_t, kBytes> part;
    const auto table = hn::LoadU(tag, book.data());
    const auto index = hn::LoadU(part, reinterpret_cast<const std::int8_t*>(codes));
    hn::StoreU(hn::TableLookupBytes(table, index), part, found);
#endif
    for (int i = 0; i < kBytes; ++i) values[first + i] = scale * static_cast<float>(found[i]);
  });
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
