#include "backend/cpu/dropout.h"

#include <algorithm>

#include "backend/cpu/views.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kFactors = 512;  // at once

// The factors of elements [index, index + n) of the input of an adapter. A call of the generator
// gives the uniform numbers of four elements.
void DropFactors(const LoraView& lora, std::int64_t index, std::int64_t n, float* out) {
  const float keep = 1.0f / (1.0f - lora.dropout);
  for (std::int64_t i = 0; i < n;) {
    const auto words = RandomWords(lora.dropout_key, (index + i) / 4);
    for (std::int64_t j = (index + i) % 4; j < 4 && i < n; ++j, ++i) {
      const float uniform = static_cast<float>(words[j] >> 8) * 0x1p-24f;
      out[i] = uniform < lora.dropout ? 0.0f : keep;
    }
  }
}

}  // namespace

void DropInputs(const LoraView& lora, const ConstMatrixView& x, std::int64_t row, std::int64_t col,
                const MatrixView& out) {
  const ConstMatrixView in = Block(x, row, out.rows, col, out.cols);
  for (std::int64_t n = 0; n < out.rows; ++n) {
    float* to = out.Row<float>(n);
    for (std::int64_t i = 0; i < out.cols; ++i) {
      to[i] = in.dtype == DType::kF32 ? in.Row<float>(n)[i] : ToFloat(in.Row<BFloat16>(n)[i]);
    }
  }
  DropOutputs(lora, x.cols, row, col, out);
}

void DropOutputs(const LoraView& lora, std::int64_t cols, std::int64_t row, std::int64_t col,
                 const MatrixView& out) {
  float factors[kFactors];
  for (std::int64_t n = 0; n < out.rows; ++n) {
    float* to = out.Row<float>(n);
    for (std::int64_t i = 0; i < out.cols; i += kFactors) {
      const std::int64_t count = std::min(kFactors, out.cols - i);
      DropFactors(lora, (row + n) * cols + col + i, count, factors);
      for (std::int64_t j = 0; j < count; ++j) to[i + j] *= factors[j];
    }
  }
}

}  // namespace qlora::cpu
