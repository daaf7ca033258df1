// Packing of operands as float32, rounded to bfloat16 or not; contracts: Kernels in kernels.h.
// Included once per target.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_PACK_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_PACK_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_PACK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backend/cpu/lanes-inl.h"
#include "qlora/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// An element of an operand, rounded to bfloat16 if kRound.
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> Operand(D d, hn::Vec<D> v) {
  if constexpr (kRound) return RoundToBFloat16(d, v);
  return v;
}
template <bool kRound, class D>
HWY_INLINE hn::Vec<D> LoadOperand(D d, const void* row, DType dtype, std::int64_t i) {
  return Operand<kRound>(d, LoadAs(d, row, dtype, i));
}

template <bool kRound>
void PackRows(const ConstMatrixView& in, float scale, void* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const void* row = RowOf(in, r);
    auto* to = static_cast<float*>(out) + r * stride;
    ForEachVector(in.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = hn::Mul(LoadAs(d, row, in.dtype, i), hn::Set(d, scale));
      hn::StoreU(Operand<kRound>(d, value), d, to + i);
    });
  }
}

template <bool kRound>
void PackRowsTransposed(const ConstMatrixView& in, void* out, std::int64_t stride) {
  for (std::int64_t i = 0; i < in.rows; ++i) {
    const void* row = RowOf(in, i);
    auto* to = static_cast<float*>(out) + i;
    ForEachVector(in.cols, [&](auto tag, std::int64_t r) HWY_ATTR {
      constexpr std::int64_t kCount = hn::MaxLanes(tag);
      HWY_ALIGN float lanes[kLanes];
      hn::StoreU(LoadOperand<kRound>(tag, row, in.dtype, r), tag, lanes);
      for (std::int64_t j = 0; j < kCount; ++j) to[(r + j) * stride] = lanes[j];
    });
  }
}

// Four rows at a time become four neighbouring lanes, as many values of k as a vector has at a
// time:
//   v[0]  a0 a1 a2 ...         panel, k = 0   a0 b0 c0 d0
//   v[1]  b0 b1 b2 ...   ->           k = 1   a1 b1 c1 d1
//   v[2]  c0 c1 c2 ...                k = 2   a2 b2 c2 d2
//   v[3]  d0 d1 d2 ...
template <bool kRound>
void PackPanelOfRows(const ConstMatrixView& in, void* panel, std::int64_t width) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  for (std::int64_t lane = 0; lane < width; lane += 4) {
    auto* to = static_cast<float*>(panel) + lane;
    const auto load = [&](auto tag, std::int64_t j, std::int64_t i) HWY_ATTR {
      return lane + j < in.rows ? LoadOperand<kRound>(tag, RowOf(in, lane + j), in.dtype, i)
                                : hn::Zero(tag);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= in.cols; i += kLanes) {
      hn::Vec<FloatTag> v[4];
      for (std::int64_t j = 0; j < 4; ++j) v[j] = load(d, j, i);
      StoreColumns(v, to + i * width, width);
    }
    for (; i < in.cols; ++i) {
      for (std::int64_t j = 0; j < 4; ++j) to[i * width + j] = hn::GetLane(load(d1, j, i));
    }
  }
}

template <bool kRound>
void PackPanelOfColumns(const ConstMatrixView& in, void* panel, std::int64_t width) {
  for (std::int64_t k = 0; k < in.rows; ++k) {
    const void* row = RowOf(in, k);
    auto* to = static_cast<float*>(panel) + k * width;
    ForEachVector(in.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(LoadOperand<kRound>(d, row, in.dtype, i), d, to + i);
    });
    std::fill(to + in.cols, to + width, 0.0f);
  }
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_PACK_INL_H_
