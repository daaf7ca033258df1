// Products of codes without instructions for bytes: float32 holds codes, their products and the
// sums of a group exactly, so the kernels for float32 compute whole numbers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8/int8_product.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>
#include <cmath>

#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/int8/codes.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// c = fma(sums, scales, [c]), the scale of each lane.
void AddScaled(const float* sums, const float* scales, std::int64_t width, bool add, float* c) {
  for (std::int64_t i = 0; i < width; ++i) {
    // Targets below AVX2 have no fused operation in Highway.
    if constexpr (HWY_TARGET == HWY_SCALAR) c[i] = std::fma(sums[i], scales[i], add ? c[i] : 0);
  }
  if constexpr (HWY_TARGET != HWY_SCALAR) {
    const FloatTag d;
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const auto before = add ? hn::LoadU(d, c + i) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, sums + i), hn::LoadU(d, scales + i), before), d, c + i);
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {
namespace {

constexpr std::int64_t kRows = 48;  // at a time

HWY_EXPORT(AddScaled);

// One group of at most int8::kGroup codes.
class FloatGroup {
 public:
  explicit FloatGroup(const Int8Product& p) : p_(p), kernels_(SelectKernels(DType::kF32)) {}

  void Multiply(std::int64_t group) {
    const std::int64_t first = group * int8::kGroup;
    const std::int64_t depth = std::min(int8::kGroup, p_.k - first);
    PackLanes(first, depth);
    for (std::int64_t r = 0; r < p_.rows; r += kRows) {
      const std::int64_t rows = std::min(kRows, p_.rows - r);
      PackRows(r, rows, first, depth);
      MultiplyPanels(kernels_,
                     {.rows = rows,
                      .k = depth,
                      .a = a_,
                      .a_stride = kStride,
                      .panel = panels_,
                      .c = sums_,
                      .c_stride = p_.width},
                     p_.width);
      for (std::int64_t i = 0; i < rows; ++i) {
        HWY_DYNAMIC_DISPATCH(AddScaled)
        (sums_ + i * p_.width, p_.scales + group * p_.width, p_.width, p_.add || group > 0,
         p_.c + (r + i) * p_.c_stride);
      }
    }
  }

 private:
  void PackLanes(std::int64_t first, std::int64_t depth) {
    const std::int8_t* from = p_.panel + first * p_.width;
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t lane = 0; lane < p_.width; ++lane) {
        lanes_[k * p_.width + lane] =
            from[k / kInt8Step * kInt8Step * p_.width + lane * kInt8Step + k % kInt8Step];
      }
    }
    PackPanels(kernels_, MakeView(std::as_const(lanes_), depth, p_.width), panels_);
  }
  void PackRows(std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t depth) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::uint8_t* from = p_.a + (row + r) * kInt8Stride + first;
      for (std::int64_t k = 0; k < depth; ++k) {
        a_[r * kStride + k] = static_cast<float>(from[k] - kCodeOffset);
      }
    }
  }

  static constexpr std::int64_t kStride = int8::kGroup + kRowGap;
  const Int8Product& p_;
  const Kernels& kernels_;
  float lanes_[int8::kGroup * kInt8Lanes];
  float panels_[int8::kGroup * kInt8Lanes];
  float a_[kRows * kStride];
  float sums_[kRows * kInt8Lanes];
};

void MultiplyAsFloats(const Int8Product& p) {
  FloatGroup group(p);
  for (std::int64_t g = 0; g * int8::kGroup < p.k; ++g) group.Multiply(g);
  for (std::int64_t r = 0; r < p.rows && p.factors != nullptr; ++r) {
    for (std::int64_t i = 0; i < p.width; ++i) p.c[r * p.c_stride + i] *= p.factors[r];
  }
}

}  // namespace

const Int8Kernels& KernelsOf(Int8Dots dots) {
  static constexpr Int8Kernels kFloats = {kCodeOffset, MultiplyAsFloats};
  return dots == Int8Dots::kFloat ? kFloats : Int8KernelsOfProcessor(dots);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
