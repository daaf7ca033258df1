#include "convert/merged_linear.h"

#include <cmath>

#include "base/matrix.h"
#include "quant/layout.h"

namespace qlora {

void WidenToFloat(const void* data, DType dtype, std::int64_t count, float* out) {
  ConvertToWide(data, dtype, 0, MakeView(out, 1, count));
}

MergedLinear::MergedLinear(Memory& memory, const WeightView& weight, const LoraLinear* lora)
    : weight_(memory, weight), cols_(weight.cols()) {
  const auto copy_matrix = [&](ConstMatrixView m) {
    copies_.emplace_back(memory, m.data, BytesOf(m.dtype, m.rows * m.cols));
    m.data = copies_.back().data();
    return m;
  };
  if (lora == nullptr || lora->rank == 0) return;
  rank_ = lora->rank;
  scale_ = lora->scale;
  a_ = copy_matrix(lora->a);
  b_ = copy_matrix(lora->b);
  // W' = m (W + scale B A) / |W + scale B A|, row by row
  if (lora->is_dora()) magnitude_ = copy_matrix(lora->magnitude);
}

void MergedLinear::ReadRow(std::int64_t row, float* out) const {
  const std::int64_t n = cols();
  weight_.Read(row, out);
  if (rank_ == 0) return;
  // The sum over ranks is kept in double: one rounding for the whole update.
  // B A row by row: (O, I) values are never held, only one row of them.
  std::vector<double> update(n, 0.0);
  const float* b = b_.Row<float>(row);
  for (std::int64_t r = 0; r < rank_; ++r) {
    // Exact: the product of two float32 has 48 bits.
    const double factor = double{b[r]} * double{scale_};
    const float* a = a_.Row<float>(r);
    for (std::int64_t i = 0; i < n; ++i) update[i] += factor * a[i];
  }
  double gain = 1;  // DoRA: the length of the row becomes its magnitude
  if (!magnitude_.empty()) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = out[i] + update[i];
      squares += value * value;
    }
    gain = squares > 0 ? double{magnitude_.Row<float>(0)[row]} / std::sqrt(squares) : 0;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(gain * (out[i] + update[i]));
  }
}

void MergedLinear::Read(Context& context, std::span<const std::int64_t> rows, float* out) const {
  // Rows are independent, so the bits do not depend on the threads.
  context.ParallelFor(static_cast<std::int64_t>(rows.size()),
                      [&](std::int64_t i, int) { ReadRow(rows[i], out + i * cols()); });
}

void MergedLinear::ReadWithoutAdapter(Context& context, std::span<const std::int64_t> rows,
                                      float* out) const {
  context.ParallelFor(static_cast<std::int64_t>(rows.size()),
                      [&](std::int64_t i, int) { weight_.Read(rows[i], out + i * cols()); });
}

}  // namespace qlora
