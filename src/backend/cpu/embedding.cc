// The gradient of the embedding table, and the noise that NEFTune adds to rows of the table.
#include "backend/cpu/row_ops.h"

namespace qlora::cpu {

void EmbedBackwardColumns(const ops::EmbedBackward& op, Range columns) {
  for (std::int64_t n = 0; n < op.dy.rows; ++n) {
    const float* dy = op.dy.Row<float>(n);
    float* row = op.d_table_acc.Row<float>(op.ids.data[n]);
    for (std::int64_t i = columns.begin; i < columns.end; ++i) row[i] += op.scale * dy[i];
  }
}

void AddNoiseRows(const ops::AddNoise& op, Range rows) {
  const MatrixView& y = op.y_acc;
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const float magnitude = op.magnitude.Row<float>(0)[n];
    for (std::int64_t i = 0; i < y.cols; ++i) {
      const float noise = magnitude * (2 * RandomUniform(op.key, n * y.cols + i) - 1);
      if (y.dtype == DType::kF32) {
        y.Row<float>(n)[i] += noise;
      } else {
        BFloat16& to = y.Row<BFloat16>(n)[i];
        to = ToBFloat16(ToFloat(to) + noise);
      }
    }
  }
}

}  // namespace qlora::cpu
