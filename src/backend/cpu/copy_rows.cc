// Copies and sums of whole rows: Add, GatherRows and ScatterAddRows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/copy_rows.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Copy(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
          std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    ScaleRow(ConstRow(x, from.empty() ? n : from[n]), 1, add, Row(y, to.empty() ? n : to[n]),
             x.cols);
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Copy);
void CopyRows(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
              std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Copy)(x, from, y, to, add, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
