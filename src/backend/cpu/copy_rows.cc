// Copies, sums and multiples of whole rows: most ops that move rows, and tiles of products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/copy_rows.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Copy(const RowCopy& copy, Range rows) {
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow from(copy.x, copy.from.size == 0 ? n : copy.from.data[n]);
    const Row to(copy.y, copy.to.size == 0 ? n : copy.to.data[n]);
    const float scale = copy.scales.empty() ? copy.scale : copy.scales.Row<float>(0)[n];
    ForEachVector(copy.x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      auto value = hn::Mul(hn::Set(d, scale), from.Load(d, i));
      if (copy.add) value = hn::Add(value, to.Load(d, i));
      to.Store(d, value, i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Copy);
void CopyRows(const RowCopy& copy, Range rows) { HWY_DYNAMIC_DISPATCH(Copy)(copy, rows); }

}  // namespace qlora::cpu
#endif  // HWY_ONCE
