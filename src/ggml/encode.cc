// The encoders, compiled once per target. All targets add the same numbers in the same order.
#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ggml/encode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "base/check.h"
#include "ggml/encode.h"
// Once per target.
#include "ggml/flat_encoders-inl.h"
#include "ggml/super_encoders-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

// x and w hold the values of one block and positive weights.
using EncodeBlock = void (*)(const float* x, const float* w, std::byte* block);

inline EncodeBlock EncoderOf(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return EncodeQ4_0;
    case BlockFormat::kQ4_1:
      return EncodeQ4_1;
    case BlockFormat::kQ5_0:
      return EncodeQ5_0;
    case BlockFormat::kQ5_1:
      return EncodeQ5_1;
    case BlockFormat::kQ8_0:
      return EncodeQ8_0;
    case BlockFormat::kQ2_K:
      return EncodeQ2_K;
    case BlockFormat::kQ3_K:
      return EncodeQ3_K;
    case BlockFormat::kQ4_K:
      return EncodeQ4_K;
    case BlockFormat::kQ5_K:
      return EncodeQ5_K;
    case BlockFormat::kQ6_K:
      return EncodeQ6_K;
    case BlockFormat::kIQ4_NL:
      return EncodeIQ4_NL;
    case BlockFormat::kIQ4_XS:
      return EncodeIQ4_XS;
    case BlockFormat::kMXFP4:
      return EncodeMXFP4;
    default:
      return nullptr;
  }
}

// Weights of one block, at most a little above 1: only their ratios count.
inline void WeightsOf(const float* importance, std::int64_t n, float* weights) {
  constexpr float kLeast = 1e-7f;
  const float largest = importance == nullptr ? 0 : *std::max_element(importance, importance + n);
  for (std::int64_t i = 0; i < n; ++i) {
    weights[i] = largest > 0 ? importance[i] / largest + kLeast : 1;
  }
}

void EncodeOn(const BlockFormatInfo& info, const float* row, std::int64_t count,
              const float* importance, std::byte* blocks) {
  const EncodeBlock encode = EncoderOf(info.format);
  float weights[kMaxBlockValues];
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t at = b * info.values;
    WeightsOf(importance == nullptr ? nullptr : importance + at, info.values, weights);
    encode(row + at, weights, blocks + b * info.bytes);
  }
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora {
namespace {

// The largest magnitude on both sides that scales of float16 reach.
float LargestValue(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return kLargestHalf * 7;
    case BlockFormat::kQ5_0:
      return kLargestHalf * 15;
    case BlockFormat::kQ8_0:
      return kLargestHalf * 127;
    case BlockFormat::kQ2_K:
      return kLargestHalf * 15;
    case BlockFormat::kQ3_K:
      return kLargestHalf * 31 * 3;
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      return kLargestHalf * 63;
    case BlockFormat::kQ6_K:
      return kLargestHalf * 127 * 31;
    case BlockFormat::kIQ4_NL:
      return kLargestHalf * 113;
    case BlockFormat::kIQ4_XS:
      return kLargestHalf * 31 * 113;
    case BlockFormat::kMXFP4:
      return 0x1.8p127f;  // what is nearest to code 8 with the largest scale is infinite
    default:
      return kLargestHalf;
  }
}

}  // namespace

HWY_EXPORT(EncodeOn);
std::int64_t EncodeBlocks(BlockFormat format, const float* row, std::int64_t count,
                          const float* importance, std::byte* blocks) {
  const BlockFormatInfo& info = InfoOf(format);
  if (!info.encodable) ThrowInvalidInput("blocks of {} can be read, not written", info.name);
  const float largest = LargestValue(format);
  for (std::int64_t i = 0; i < count * info.values; ++i) {
    if (!(std::abs(row[i]) <= largest)) return i;
  }
  HWY_DYNAMIC_DISPATCH(EncodeOn)(info, row, count, importance, blocks);
  return -1;
}

}  // namespace qlora
#endif
