#include "quant/scale_search.h"

#include <algorithm>
#include <cmath>

#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace qlora {
namespace {

// The kernel takes whole steps; zeros fill up.
std::int64_t WholeSteps(std::int64_t n) { return BlockCount(n, kSearchStep) * kSearchStep; }

}  // namespace

ScaleSearch::ScaleSearch(const EncodeTable& table, const float* code, std::int64_t block_size,
                         std::span<const float> importance)
    : table_(&table), code_(code), importance_(importance), x_(WholeSteps(block_size)) {
  if (!importance.empty()) weights_.resize(x_.size());
}

// The kernel searches for the multiplier m of absmax, over values divided by absmax, so that its
// grid is the same for blocks of any magnitude; scale = m absmax. m may be above 1, where the
// product can overflow: then absmax stays.
template <typename T>
float ScaleSearch::Best(const T* x, std::int64_t n, std::int64_t first, float absmax) {
  if (absmax == 0) return absmax;
  const std::int64_t steps = WholeSteps(n);
  const float factor = 1.0f / std::max(absmax, kLeastDivisor);
  for (std::int64_t i = 0; i < n; ++i) x_[i] = ToFloat(x[i]) * factor;
  std::fill(x_.begin() + n, x_.begin() + steps, 0.0f);
  if (!importance_.empty()) {
    // Importance belongs to a column, and blocks may cross the ends of rows: the column wraps
    // around.
    std::int64_t col = first % std::ssize(importance_);
    for (std::int64_t i = 0; i < steps; ++i) {
      weights_[i] = importance_[col];
      if (++col == std::ssize(importance_)) col = 0;
    }
  }
  const float scale =
      absmax * BestMultiplier({.x = x_.data(),
                               .weights = importance_.empty() ? nullptr : weights_.data(),
                               .n = steps,
                               .table = table_,
                               .code = code_});
  return std::isfinite(scale) ? scale : absmax;
}
template float ScaleSearch::Best(const float*, std::int64_t, std::int64_t, float);
template float ScaleSearch::Best(const BFloat16*, std::int64_t, std::int64_t, float);
template float ScaleSearch::Best(const Float16*, std::int64_t, std::int64_t, float);

}  // namespace qlora
