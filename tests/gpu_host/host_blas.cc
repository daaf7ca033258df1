// The product as loops: the row of a and the column of b are widened to float32, products are added
// in order, and the sum is rounded once.
#include <vector>

#include "base/check.h"
#include "gpu_host/host_runtime.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace gpu_host {
namespace {

using qlora::BFloat16;
using qlora::ConstMatrixView;
using qlora::DType;
using qlora::MatrixView;
using qlora::ThrowRuntime;
using qlora::cuda::Gemm;

float At(const ConstMatrixView& m, std::int64_t r, std::int64_t c) {
  return m.dtype == DType::kF32 ? m.Row<float>(r)[c] : ToFloat(m.Row<BFloat16>(r)[c]);
}
void Put(const MatrixView& m, std::int64_t r, std::int64_t c, float value) {
  if (m.dtype == DType::kF32) {
    m.Row<float>(r)[c] = value;
  } else {
    m.Row<BFloat16>(r)[c] = qlora::ToBFloat16(value);
  }
}

// (cols, rows) with `transpose`, contiguous.
std::vector<float> Widened(const ConstMatrixView& m, bool transpose) {
  std::vector<float> values;
  values.reserve(m.rows * m.cols);
  for (std::int64_t i = 0; i < (transpose ? m.cols : m.rows); ++i) {
    for (std::int64_t j = 0; j < (transpose ? m.rows : m.cols); ++j) {
      values.push_back(transpose ? At(m, j, i) : At(m, i, j));
    }
  }
  return values;
}

void CheckOperand(const char* name, const ConstMatrixView& m) {
  if (!qlora::cuda::IsBlasOperand(m)) {
    ThrowRuntime("gpu model: operand {} of a product is not aligned to 16 bytes, stride {}", name,
                 m.stride);
  }
  const std::size_t bytes = qlora::BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols);
  if (m.stride < m.cols || !IsDeviceMemory(m.data, bytes)) {
    ThrowRuntime("gpu model: operand {} ({}, {}) of a product is not in device memory", name,
                 m.rows, m.cols);
  }
}

void CheckGemm(const Gemm& g) {
  const std::int64_t K = g.transpose_a ? g.a.rows : g.a.cols;
  const std::int64_t M = g.transpose_a ? g.a.cols : g.a.rows;
  const std::int64_t N = g.transpose_b ? g.b.rows : g.b.cols;
  if (K != (g.transpose_b ? g.b.cols : g.b.rows) || M != g.c.rows || N != g.c.cols || K == 0) {
    ThrowRuntime("gpu model: a product of ({}, {}) and ({}, {}) into ({}, {})", g.a.rows, g.a.cols,
                 g.b.rows, g.b.cols, g.c.rows, g.c.cols);
  }
  const bool bf16 = g.a.dtype == DType::kBF16 && g.b.dtype == DType::kBF16 &&
                    (g.c.dtype == DType::kBF16 || g.c.dtype == DType::kF32);
  const bool f32 = g.a.dtype == DType::kF32 && g.b.dtype == DType::kF32 && g.c.dtype == DType::kF32;
  if (!bf16 && !f32) {
    ThrowRuntime("gpu model: a product of {} and {} into {}", NameOf(g.a.dtype), NameOf(g.b.dtype),
                 NameOf(g.c.dtype));
  }
  CheckOperand("a", g.a);
  CheckOperand("b", g.b);
  const std::size_t bytes = qlora::BytesOf(g.c.dtype, (M - 1) * g.c.stride + N);
  if (g.c.stride < g.c.cols || !IsDeviceMemory(g.c.data, bytes)) {
    ThrowRuntime("gpu model: the result ({}, {}) of a product is not in device memory", M, N);
  }
  if (g.base.empty()) return;
  const std::size_t base_bytes = qlora::BytesOf(g.base.dtype, (M - 1) * g.base.stride + N);
  if (g.base.rows != M || g.base.cols != N || g.base.dtype != g.c.dtype || g.base.stride < N ||
      !IsDeviceMemory(g.base.data, base_bytes)) {
    ThrowRuntime("gpu model: what is added to a product ({}, {}) is {} ({}, {})", M, N,
                 NameOf(g.base.dtype), g.base.rows, g.base.cols);
  }
}

void Multiply(const Gemm& g) {
  const std::int64_t M = g.c.rows;
  const std::int64_t N = g.c.cols;
  const std::int64_t K = g.transpose_a ? g.a.rows : g.a.cols;
  const std::vector<float> a = Widened(g.a, g.transpose_a);
  const std::vector<float> b = Widened(g.b, g.transpose_b);
  std::vector<float> sums(N);
  for (std::int64_t m = 0; m < M; ++m) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (std::int64_t k = 0; k < K; ++k) {
      const float factor = a[m * K + k];
      for (std::int64_t n = 0; n < N; ++n) sums[n] += factor * b[k * N + n];
    }
    for (std::int64_t n = 0; n < N; ++n) {
      const float old = g.beta == 0 ? 0 : g.beta * At(g.added(), m, n);
      Put(g.c, m, n, g.alpha * sums[n] + old);
    }
    ShadowWrittenByHost(static_cast<std::byte*>(g.c.data) + BytesOf(g.c.dtype, m * g.c.stride),
                        BytesOf(g.c.dtype, N));
  }
}

class HostBlas final : public qlora::cuda::Blas {
 public:
  void Run(qlora::cuda::Stream stream, const Gemm& gemm) override {
    if (gemm.c.empty()) return;
    CheckGemm(gemm);
    Enqueue([gemm] { Multiply(gemm); }, QueueOf(stream));
  }
};

}  // namespace

std::unique_ptr<qlora::cuda::Blas> MakeHostBlas() { return std::make_unique<HostBlas>(); }

}  // namespace gpu_host
