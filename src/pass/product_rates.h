// How fast this machine multiplies with frozen weights: a probe, for estimates of time and for what
// is said of compute_dtype int8.
#ifndef QLORA_PASS_PRODUCT_RATES_H_
#define QLORA_PASS_PRODUCT_RATES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_factory.h"
#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora {

// y (rows, out) = x (rows, in) W^T and dx = dy W.
struct ProductShape {
  std::int64_t rows;
  std::int64_t out;
  std::int64_t in;
  bool quantized;  // W: NF4, else bfloat16
};

// FLOP/s: a product and a sum are two.
struct ProductRates {
  double forward;
  double backward;

  // Of as many products forward as backward.
  double mean() const { return 2 / (1 / forward + 1 / backward); }
};

// Rates of each precision: the best of the repetitions that fit into `seconds`, of pseudo-random
// values, since codes of zeros would take a shorter way. Precisions take turns, so that what
// disturbs the machine for a while disturbs all of them.
std::vector<ProductRates> MeasureProducts(Context& context, const BackendFactory& backends,
                                          std::span<const Precision> precisions,
                                          const ProductShape& shape, double seconds);

}  // namespace qlora

#endif  // QLORA_PASS_PRODUCT_RATES_H_
