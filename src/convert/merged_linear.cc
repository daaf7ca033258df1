#include "convert/merged_linear.h"

#include <cmath>

#include "base/matrix.h"

namespace qlora {

void WidenToFloat(const void* data, DType dtype, std::int64_t count, float* out) {
  ConvertToWide(data, dtype, 0, MakeView(out, 1, count));
}

void MergedLinear::ReadRow(std::int64_t row, float* out) const {
  const std::int64_t n = cols();
  if (weight_.is_dense()) {
    WidenToFloat(Rows(weight_.dense, row, 1).data, weight_.dense.dtype, n, out);
  } else {
    DequantizeRows(weight_.quantized, row, MakeView(out, 1, n));
  }
  if (lora_ == nullptr || lora_->rank == 0) return;
  // The sum over ranks is kept in double: one rounding for the whole update.
  std::vector<double> update(n, 0.0);
  const float* b = lora_->b.Row<float>(row);
  for (std::int64_t r = 0; r < lora_->rank; ++r) {
    const double factor = double{b[r]} * double{lora_->scale};
    const float* a = lora_->a.Row<float>(r);
    for (std::int64_t i = 0; i < n; ++i) update[i] += factor * a[i];
  }
  double gain = 1;  // DoRA: the length of the row becomes its magnitude
  if (lora_->is_dora()) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = out[i] + update[i];
      squares += value * value;
    }
    gain = squares > 0 ? double{lora_->magnitude.Row<float>(0)[row]} / std::sqrt(squares) : 0;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(gain * (out[i] + update[i]));
  }
}

void MergedLinear::Read(Context& context, std::span<const std::int64_t> rows, float* out) const {
  context.ParallelFor(static_cast<std::int64_t>(rows.size()),
                      [&](std::int64_t i, int) { ReadRow(rows[i], out + i * cols()); });
}

}  // namespace qlora
