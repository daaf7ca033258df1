#include "base/matrix.h"

#include <cstring>

#include "base/check.h"

namespace qlora {

void FillZero(MatrixView m) {
  QLORA_DCHECK(m.stride == m.cols);
  if (!m.empty())
    std::memset(m.data, 0, BytesOf(m.dtype, static_cast<std::size_t>(m.rows * m.cols)));
}

double RealAt(const ConstMatrixView& m, std::int64_t i) {
  switch (m.dtype) {
    case DType::kF32:
      return m.Row<float>(0)[i];
    case DType::kF64:
      return m.Row<double>(0)[i];
    case DType::kC128:
      return m.Row<std::complex<double>>(0)[i].real();
    default:
      ThrowRuntime("RealAt: {} is not supported", NameOf(m.dtype));
  }
}

}  // namespace qlora
