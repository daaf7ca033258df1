#include "pass/blocks/layer_carver.h"

#include "base/check.h"

namespace qlora {

MatrixView LayerCarver::LastInputGradient(std::int64_t count, std::int64_t cols) {
  QLORA_DCHECK(!gradient_ || carver_.bytes() == gradient_end_);
  if (!gradient_) gradient_ = carver_;
  Carver here = *gradient_;
  const MatrixView m = here.Matrix(precision_.activation, count, cols);
  carver_.GoBehind(here);
  gradient_end_ = carver_.bytes();
  return m;
}

}  // namespace qlora
