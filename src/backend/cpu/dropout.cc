#include "backend/cpu/dropout.h"

#include "backend/cpu/row_ops.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

void DropInputs(const LoraView& lora, const ConstMatrixView& x, std::int64_t row, std::int64_t col,
                const MatrixView& out) {
  CopyRows({.x = Block(x, row, out.rows, col, out.cols), .y = out}, {0, out.rows});
  DropOutputs(lora, x.cols, row, col, out);
}

// A call of the generator gives the uniform numbers of four elements.
void DropOutputs(const LoraView& lora, std::int64_t cols, std::int64_t row, std::int64_t col,
                 const MatrixView& out) {
  const float keep = 1.0f / (1.0f - lora.dropout);
  for (std::int64_t n = 0; n < out.rows; ++n) {
    const std::int64_t index = (row + n) * cols + col;
    float* to = out.Row<float>(n);
    for (std::int64_t i = 0; i < out.cols;) {
      const auto words = RandomWords(lora.dropout_key, (index + i) / 4);
      for (std::int64_t j = (index + i) % 4; j < 4 && i < out.cols; ++j, ++i) {
        const float uniform = static_cast<float>(words[j] >> 8) * 0x1p-24f;
        to[i] *= uniform < lora.dropout ? 0.0f : keep;
      }
    }
  }
}

}  // namespace qlora::cpu
