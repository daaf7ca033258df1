// The scales of ggml's blocks, for kernels that multiply codes before they are scaled:
//   value = scale * code - min
// A kernel reads `kValues` values of a row at a time, with a scale for each kPerScale of them.
#ifndef QLORA_BACKEND_CPU_GEMM_BLOCK_SCALES_H_
#define QLORA_BACKEND_CPU_GEMM_BLOCK_SCALES_H_

#include <cstddef>

#include "ggml/block_bytes.h"
#include "ggml/block_format.h"
#include "ggml/sub_scales.h"

namespace qlora::cpu {

// The formats that have kernels of their own.
template <BlockFormat kFormat>
struct BlockScales;

// One scale of 16 bits in front of 32 codes.
template <int kBlockBytes>
struct FlatScales {
  static constexpr int kValues = 32;
  static constexpr int kPerScale = 32;
  static constexpr int kBytes = kBlockBytes;
  static constexpr bool kHasMins = false;
  static constexpr int kCodes = 2;  // bytes in front of the codes
  static void Load(const std::byte* block, float* scales, float* /*mins*/) {
    scales[0] = HalfAt(block);
  }
};
template <>
struct BlockScales<BlockFormat::kQ4_0> : FlatScales<18> {};
template <>
struct BlockScales<BlockFormat::kIQ4_NL> : FlatScales<18> {};
template <>
struct BlockScales<BlockFormat::kQ8_0> : FlatScales<34> {};
template <>
struct BlockScales<BlockFormat::kMXFP4> : FlatScales<17> {
  static constexpr int kCodes = 1;
  static void Load(const std::byte* block, float* scales, float* /*mins*/) {
    scales[0] = HalfOfE8m0(block[0]);
  }
};

template <>
struct BlockScales<BlockFormat::kQ4_K> {
  static constexpr int kValues = 256;
  static constexpr int kPerScale = 32;
  static constexpr int kBytes = 144;
  static constexpr bool kHasMins = true;
  static constexpr int kCodes = 16;
  static void Load(const std::byte* block, float* scales, float* mins) {
    const float d = HalfAt(block);
    const float d_min = HalfAt(block + 2);
    const ScalesAndMins sub = UnpackScalesAndMins(block + 4);
    for (int j = 0; j < 8; ++j) {
      scales[j] = d * static_cast<float>(sub.scales[j]);
      mins[j] = d_min * static_cast<float>(sub.mins[j]);
    }
  }
};

template <>
struct BlockScales<BlockFormat::kQ6_K> {
  static constexpr int kValues = 256;
  static constexpr int kPerScale = 16;
  static constexpr int kBytes = 210;
  static constexpr bool kHasMins = false;
  static constexpr int kCodes = 0;
  static void Load(const std::byte* block, float* scales, float* /*mins*/) {
    const float d = HalfAt(block + 208);
    for (int j = 0; j < 16; ++j) {
      scales[j] = d * static_cast<float>(LoadAt<std::int8_t>(block + 192 + j));
    }
  }
};

// Returns of<format>(), a kernel, or null for a format that has none.
template <class Of>
auto KernelForBlocks(BlockFormat format, const Of& of)
    -> decltype(of.template operator()<BlockFormat::kQ4_0>()) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return of.template operator()<BlockFormat::kQ4_0>();
    case BlockFormat::kIQ4_NL:
      return of.template operator()<BlockFormat::kIQ4_NL>();
    case BlockFormat::kMXFP4:
      return of.template operator()<BlockFormat::kMXFP4>();
    case BlockFormat::kQ8_0:
      return of.template operator()<BlockFormat::kQ8_0>();
    case BlockFormat::kQ4_K:
      return of.template operator()<BlockFormat::kQ4_K>();
    case BlockFormat::kQ6_K:
      return of.template operator()<BlockFormat::kQ6_K>();
    default:
      return nullptr;
  }
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_BLOCK_SCALES_H_
