#include "quant/first_non_finite.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/check.h"

namespace qlora {

namespace {

// A float is NaN or Inf exactly when its exponent bits are all ones.
template <typename Bits>
std::int64_t FirstWithExponent(Context& context, const ConstMatrixView& m, Bits exponent) {
  const std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first{none};
  context.ParallelFor(m.rows, [&](std::int64_t r, int) {
    const Bits* row = m.Row<Bits>(r);
    // Without an early end, so that the compiler can vectorize the loop; nearly all rows are
    // finite. The index is looked for only in a row that holds one.
    bool bad = false;
    for (std::int64_t c = 0; c < m.cols; ++c) bad |= (row[c] & exponent) == exponent;
    if (!bad) return;
    const Bits* at =
        std::find_if(row, row + m.cols, [&](Bits bits) { return (bits & exponent) == exponent; });
    const std::int64_t index = r * m.cols + (at - row);
    // The smallest index wins whatever the order of the threads, so the message is always the same.
    std::int64_t seen = first.load(std::memory_order_relaxed);
    while (index < seen && !first.compare_exchange_weak(seen, index)) {
    }
  });
  return first == none ? -1 : first.load();
}

}  // namespace

std::int64_t FirstNonFinite(Context& context, const ConstMatrixView& m) {
  switch (m.dtype) {
    case DType::kF32:
      return FirstWithExponent<std::uint32_t>(context, m, 0x7f800000);
    case DType::kF16:
      return FirstWithExponent<std::uint16_t>(context, m, 0x7c00);
    case DType::kBF16:
      return FirstWithExponent<std::uint16_t>(context, m, 0x7f80);
    default:
      ThrowRuntime("FirstNonFinite: {} is not supported", NameOf(m.dtype));
  }
}

}  // namespace qlora
