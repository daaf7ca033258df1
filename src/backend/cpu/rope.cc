// Rotary position embedding: dims i and i + half of a head form a pair, which is rotated by an
// angle that grows with the position.
//
//   head:  [ x1 ... (half) | x2 ... (half) | dims that are not rotated ]
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
  const std::int64_t half = op.table.cos.cols;
  const std::int64_t K = op.x_inout.cols / op.heads;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow cos(op.table.cos, op.positions.data[n]);
    const ConstRow sin(op.table.sin, op.positions.data[n]);
    const Row row(op.x_inout, n);
    for (std::int64_t first = 0; first < op.x_inout.cols; first += K) {
      ForEachVector(half, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto c = cos.Load(d, i);
        const auto s = op.inverse ? hn::Neg(sin.Load(d, i)) : sin.Load(d, i);
        const auto x1 = row.Load(d, first + i);
        const auto x2 = row.Load(d, first + i + half);
        row.Store(d, hn::NegMulAdd(x2, s, hn::Mul(x1, c)), first + i);
        row.Store(d, hn::MulAdd(x1, s, hn::Mul(x2, c)), first + i + half);
      });
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
