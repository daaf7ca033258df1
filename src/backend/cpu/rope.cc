// Rotary position embedding: two dims of a head form a pair, which is rotated by an angle that
// grows with the position.
//
//   head:         [ x1 ... (half) | x2 ... (half) | dims that are not rotated ]
//   interleaved:  [ x1 x2 | x1 x2 | ...           | dims that are not rotated ]
//   x1' = x1 cos - x2 sin      x2' = x2 cos + x1 sin
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rope.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Rope(const ops::Rope& op, Range rows) {
  const bool inverse = op.inverse;
  const std::int64_t half = op.table.cos.cols;
  const std::int64_t K = op.x_inout.cols / op.heads;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow cos(op.table.cos, op.positions.data[n]);
    const ConstRow sin(op.table.sin, op.positions.data[n]);
    const Row row(op.x_inout, n);
    for (std::int64_t first = 0; first < op.x_inout.cols; first += K) {
      const auto rotate = [&](auto d, std::int64_t i, std::int64_t at, std::int64_t apart)
                              HWY_ATTR {
                                const auto c = cos.Load(d, i);
                                const auto s = inverse ? hn::Neg(sin.Load(d, i)) : sin.Load(d, i);
                                const auto x1 = row.Load(d, at);
                                const auto x2 = row.Load(d, at + apart);
                                row.Store(d, hn::NegMulAdd(x2, s, hn::Mul(x1, c)), at);
                                row.Store(d, hn::MulAdd(x1, s, hn::Mul(x2, c)), at + apart);
                              };
      if (op.table.interleaved) {
        // Few families pair neighbours, and the rotation is a small part of their pass.
        const hn::CappedTag<float, 1> d1;
        for (std::int64_t i = 0; i < half; ++i) rotate(d1, i, first + 2 * i, 1);
      } else {
        ForEachVector(half,
                      [&](auto d, std::int64_t i) HWY_ATTR { rotate(d, i, first + i, half); });
      }
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Rope);
void RopeRows(const ops::Rope& op, Range rows) { HWY_DYNAMIC_DISPATCH(Rope)(op, rows); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
