// Packing of operands as bfloat16 (see bf16_tile.cc), padded with zeros to whole steps of k.
#include "backend/cpu/arm/bf16.h"
#include "backend/cpu/arm/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_NEON_BF16)

namespace qlora::cpu::bf16 {
namespace {

// Four rows from k on, 8 columns from i on; zeros beyond the last row.
HWY_INLINE uint16x8x4_t LoadStep(const ConstMatrixView& in, std::int64_t k, std::int64_t i) {
  uint16x8x4_t v;
  for (std::int64_t j = 0; j < kStep; ++j) {
    v.val[j] = k + j < in.rows ? LoadBits(in, k + j, i) : vdupq_n_u16(0);
  }
  return v;
}

}  // namespace

void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride) {
  const std::int64_t k = RoundUp(in.cols, kStep);
  for (std::int64_t r = 0; r < in.rows; ++r) {
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (std::int64_t i = 0; i < k; i += kVector) {
      const uint16x8_t bits = LoadBits(in, r, i, scale);
      if (k - i >= kVector) {
        vst1q_u16(to + i, bits);
      } else {
        vst1_u16(to + i, vget_low_u16(bits));
      }
    }
  }
}

// Four rows x 8 columns at a time, which a store with interleaving transposes.
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride) {
  auto* to = static_cast<std::uint16_t*>(out);
  for (std::int64_t k = 0; k < in.rows; k += kStep) {
    for (std::int64_t i = 0; i < in.cols; i += kVector) {
      std::uint16_t columns[kVector * kStep];
      vst4q_u16(columns, LoadStep(in, k, i));
      for (std::int64_t j = 0; j < std::min(kVector, in.cols - i); ++j) {
        vst1_u16(to + (i + j) * stride + k, vld1_u16(columns + j * kStep));
      }
    }
  }
}

void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const std::int64_t k = RoundUp(in.cols, kStep);
  for (std::int64_t lane = 0; lane < width; ++lane) {
    auto* to = static_cast<std::uint16_t*>(panel) + lane * kStep;
    for (std::int64_t i = 0; i < k; i += kVector) {
      const uint16x8_t bits = lane < in.rows ? LoadBits(in, lane, i) : vdupq_n_u16(0);
      vst1_u16(to + i * width, vget_low_u16(bits));
      if (k - i >= kVector) vst1_u16(to + (i + kStep) * width, vget_high_u16(bits));
    }
  }
}

void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width) {
  auto* to = static_cast<std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < in.rows; k += kStep, to += kStep * width) {
    for (std::int64_t lane = 0; lane < width; lane += kVector) {
      vst4q_u16(to + lane * kStep, LoadStep(in, k, lane));
    }
  }
}

void PackDotRows(const ConstMatrixView& in, void* out) {
  auto* to = static_cast<std::uint16_t*>(out);
  for (std::int64_t r = 0; r < in.rows; ++r, to += RoundUp(in.cols, kDotGroup)) {
    for (std::int64_t i = 0; i < RoundUp(in.cols, kDotGroup); i += kVector) {
      vst1q_u16(to + i, LoadBits(in, r, i));
    }
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
