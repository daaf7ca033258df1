#include "backend/cpu/linear_plan.h"

#include "base/check.h"

namespace qlora::cpu {
namespace {

// The factors of elements [index, index + n) of the input of an adapter.
void DropFactors(const LoraView& lora, std::uint64_t index, std::size_t n, float* out) {
  const float keep = 1.0f / (1.0f - lora.dropout);
  for (std::size_t i = 0; i < n;) {
    const auto words = RandomWords(lora.dropout_key, (index + i) / 4);
    for (std::size_t j = (index + i) % 4; j < 4 && i < n; ++j, ++i) {
      const float uniform = static_cast<float>(words[j] >> 8) * 0x1p-24f;
      out[i] = uniform < lora.dropout ? 0.0f : keep;
    }
  }
}

constexpr std::int64_t kFactors = 512;  // at once

}  // namespace

WorkspaceSize LinearWorkspace(const Kernels& kernels, std::int64_t rows, std::int64_t gradient_rows,
                              std::int64_t in_features, std::int64_t features, std::int64_t rank) {
  return Max(DotWorkspace(kernels, rows, in_features, rank),
             Max(ForwardWorkspace(kernels, rows, in_features, rank),
                 BackwardWorkspace(kernels, gradient_rows, features, rank)));
}

std::int64_t SumOfRanks(std::span<const LinearView> linears) {
  std::int64_t rank = 0;
  for (const LinearView& linear : linears) rank += linear.lora.a.rows;
  return rank;
}

void CheckGroup(std::span<const LinearView> linears) {
  if (std::ssize(linears) > kMostLinears) {
    ThrowRuntime("linear: expected a group of at most {} linears, found {}", kMostLinears,
                 linears.size());
  }
}

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
      const auto count = static_cast<std::size_t>(std::min(kFactors, out.cols - i));
      DropFactors(lora, static_cast<std::uint64_t>((row + n) * cols + col + i), count, factors);
      for (std::size_t j = 0; j < count; ++j) to[static_cast<std::size_t>(i) + j] *= factors[j];
    }
  }
}

}  // namespace qlora::cpu
