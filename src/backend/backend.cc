#include "backend/backend.h"

#include "backend/checker.h"
#include "base/check.h"

namespace qlora {

QuantizedView Backend::Quantize(const ConstMatrixView& host, const QuantizeOptions& options,
                                const MatrixView& storage) {
  const Checker check("Quantize");
  check.Bytes("storage", storage, 1,
              static_cast<std::int64_t>(StorageBytes(host.rows, host.cols, options)));
  check.Apart("storage", storage, "the weight", host);
  return DoQuantize(host, options, storage);
}

void RefuseToPrepack() { ThrowRuntime("Prepack: this backend prepacks no weights"); }

void CheckIndices(const char* what, std::span<const std::int32_t> indices, std::int64_t count) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < count) continue;
    ThrowRuntime("{}: expected values in [0, {}), found {} at index {} (a bug of the caller)", what,
                 count, indices[i], i);
  }
}

double ReadSumOfSquares(Backend& backend, const ConstMatrixView& x, const MatrixView& sum) {
  backend.Run(ops::SumOfSquares{x, sum});
  return Download<double>(backend.memory(), sum)[0];
}

}  // namespace qlora
