// The decoders, compiled once per target: plain loops, which the compiler vectorizes. No target
// fuses or reorders operations (-ffp-contract=off), so all give the same bits.
#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ggml/decode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ggml/decode.h"
// Once per target.
#include "ggml/flat_blocks-inl.h"
#include "ggml/grid_blocks-inl.h"
#include "ggml/super_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::HWY_NAMESPACE {

using DecodeBlock = void (*)(const std::byte*, float*);

inline DecodeBlock DecoderOf(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return DecodeQ4_0;
    case BlockFormat::kQ4_1:
      return DecodeQ4_1;
    case BlockFormat::kQ5_0:
      return DecodeQ5_0;
    case BlockFormat::kQ5_1:
      return DecodeQ5_1;
    case BlockFormat::kQ8_0:
      return DecodeQ8_0;
    case BlockFormat::kQ2_K:
      return DecodeQ2_K;
    case BlockFormat::kQ3_K:
      return DecodeQ3_K;
    case BlockFormat::kQ4_K:
      return DecodeQ4_K;
    case BlockFormat::kQ5_K:
      return DecodeQ5_K;
    case BlockFormat::kQ6_K:
      return DecodeQ6_K;
    case BlockFormat::kIQ2_XXS:
      return DecodeIQ2_XXS;
    case BlockFormat::kIQ2_XS:
      return DecodeIQ2_XS;
    case BlockFormat::kIQ3_XXS:
      return DecodeIQ3_XXS;
    case BlockFormat::kIQ1_S:
      return DecodeIQ1_S;
    case BlockFormat::kIQ4_NL:
      return DecodeIQ4_NL;
    case BlockFormat::kIQ3_S:
      return DecodeIQ3_S;
    case BlockFormat::kIQ2_S:
      return DecodeIQ2_S;
    case BlockFormat::kIQ4_XS:
      return DecodeIQ4_XS;
    case BlockFormat::kIQ1_M:
      return DecodeIQ1_M;
    case BlockFormat::kTQ1_0:
      return DecodeTQ1_0;
    case BlockFormat::kTQ2_0:
      return DecodeTQ2_0;
    case BlockFormat::kMXFP4:
      return DecodeMXFP4;
    case BlockFormat::kNVFP4:
      return DecodeNVFP4;
    case BlockFormat::kQ1_0:
      return DecodeQ1_0;
    case BlockFormat::kQ2_0:
      return DecodeQ2_0;
  }
  return nullptr;
}

void DecodeToFloatOn(const BlockFormatInfo& info, const std::byte* blocks, std::int64_t count,
                     float* values) {
  const DecodeBlock decode = DecoderOf(info.format);
  for (std::int64_t b = 0; b < count; ++b) {
    decode(blocks + b * info.bytes, values + b * info.values);
  }
}

// As ToBFloat16, in a loop that the compiler vectorizes.
HWY_INLINE void RoundToBFloat16(const float* HWY_RESTRICT values, std::int64_t n,
                                BFloat16* HWY_RESTRICT out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    out[i].bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40 : rounded);
  }
}

void DecodeToBFloat16On(const BlockFormatInfo& info, const std::byte* blocks, std::int64_t count,
                        BFloat16* values) {
  float part[kMaxBlockValues];
  const std::int64_t step = kMaxBlockValues / info.values;
  for (std::int64_t b = 0; b < count; b += step) {
    const std::int64_t n = std::min(step, count - b);
    DecodeToFloatOn(info, blocks + b * info.bytes, n, part);
    RoundToBFloat16(part, n * info.values, values + b * info.values);
  }
}

}  // namespace qlora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora {

HWY_EXPORT(DecodeToFloatOn);
void DecodeBlocks(BlockFormat format, const std::byte* blocks, std::int64_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(DecodeToFloatOn)(InfoOf(format), blocks, count, values);
}

HWY_EXPORT(DecodeToBFloat16On);
void DecodeBlocks(BlockFormat format, const std::byte* blocks, std::int64_t count,
                  BFloat16* values) {
  HWY_DYNAMIC_DISPATCH(DecodeToBFloat16On)(InfoOf(format), blocks, count, values);
}

}  // namespace qlora
#endif
