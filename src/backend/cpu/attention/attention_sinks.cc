// Attention sinks: one factor and one sum for each row and head.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_sinks.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Sinks(const ops::AttentionSinks& op, Range rows) {
  const std::int64_t heads = op.sinks.cols;
  const std::int64_t K = op.o_inout.cols / heads;
  const auto* sinks = static_cast<const float*>(op.sinks.data);
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const Row o(op.o_inout, n);
    float* lse = op.lse_inout.Row<float>(n);
    for (std::int64_t h = 0; h < heads; ++h) {
      // Of the larger one, so that nothing overflows.
      const float ratio = std::exp(-std::abs(lse[h] - sinks[h]));
      const float f = (lse[h] > sinks[h] ? 1.0f : ratio) / (1.0f + ratio);
      lse[h] = std::max(lse[h], sinks[h]) + std::log1p(ratio);
      ForEachVector(K, [&](auto d, std::int64_t i) HWY_ATTR {
        o.Store(d, hn::Mul(hn::Set(d, f), o.Load(d, h * K + i)), h * K + i);
      });
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Sinks);
void AttentionSinksRows(const ops::AttentionSinks& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(Sinks)(op, rows);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE
