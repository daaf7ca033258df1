// The embedding of a table that is not dense, the gradient of the table, and the noise that NEFTune
// adds to rows of the table.
#include "backend/cpu/row_ops.h"

namespace qlora::cpu {

// Row by row, in pieces that stay in registers and the first-level cache.
void EmbedDecodedRows(const ops::Embed& op, Range rows) {
  constexpr std::int64_t kPiece = kMaxBlockValues;
  float values[kPiece];
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    for (std::int64_t d = 0; d < op.y.cols; d += kPiece) {
      const std::int64_t count = std::min(kPiece, op.y.cols - d);
      ReadRow(op.table, op.ids.data[n], d, count, values);
      CopyRows({.x = MakeView<float>(values, 1, count),
                .y = Block(op.y, n, 1, d, count),
                .scale = op.scale},
               {0, 1});
    }
  }
}

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
