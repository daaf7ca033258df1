#include "backend/backend.h"

#include "base/check.h"

namespace qlora {

void Backend::Prepack(const QuantizedView&, std::byte*) {
  ThrowRuntime("Prepack: this backend prepacks no weights");
}

double ReadSumOfSquares(Backend& backend, const ConstMatrixView& x) {
  const Arena arena(sizeof(double), backend.memory());
  Carver carver(arena);
  const MatrixView sum = carver.Matrix(DType::kF64, 1, 1);
  backend.Run(ops::SumOfSquares{x, sum});
  return Download<double>(backend.memory(), sum)[0];
}

}  // namespace qlora
