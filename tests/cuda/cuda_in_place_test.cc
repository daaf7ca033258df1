// Groups of linears whose operands have tails are multiplied without copies of x and dy.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/operands.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "cuda/test_device.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {
namespace {

class GemmRecorder final : public cuda::Blas {
 public:
  GemmRecorder(std::unique_ptr<cuda::Blas> blas, std::vector<cuda::Gemm>& seen)
      : blas_(std::move(blas)), seen_(seen) {}
  void Run(cuda::Stream stream, const cuda::Gemm& gemm) override {
    seen_.push_back(gemm);
    blas_->Run(stream, gemm);
  }

 private:
  std::unique_ptr<cuda::Blas> blas_;
  std::vector<cuda::Gemm>& seen_;
};

TEST(CudaInPlace, OneProductOfAGroup) {
  constexpr std::int64_t kRows = 80, kIn = 64, kOut = 32, kRank = 4;
  std::vector<cuda::Gemm> seen;
  const auto device = std::make_shared<cuda::Device>(
      MakeTestRuntime(0), std::make_unique<GemmRecorder>(MakeTestBlas(), seen));
  Context context(1);
  const auto backend = cuda::MakeBackendOn(context, device, DType::kBF16);
  Arena arena(1 << 20, backend->memory());
  Carver carver(arena);
  const std::int64_t tail = backend->TailColumns(2 * kRank);
  EXPECT_GE(tail, 2 * kRank);
  const MatrixView all_x = carver.Matrix(DType::kBF16, kRows, kIn + tail);
  const MatrixView all_y = carver.Matrix(DType::kBF16, kRows, 2 * kOut + tail);
  const MatrixView dx = carver.Matrix(DType::kBF16, kRows, kIn);
  std::vector<LinearView> linears;
  std::vector<LinearOutput> outputs;
  std::vector<LinearGradient> gradients;
  for (const std::int64_t begin : {std::int64_t{0}, kOut}) {
    const auto wide = [&](std::int64_t rows, std::int64_t cols) {
      return carver.Matrix(DType::kF32, rows, cols);
    };
    linears.push_back({.weight = carver.Matrix(DType::kBF16, kOut, kIn),
                       .bias = {},
                       .lora = {.a = wide(kRank, kIn),
                                .b = wide(kOut, kRank),
                                .scale = 2,
                                .dropout = 0,
                                .dropout_key = {}}});
    outputs.push_back({Columns(all_y, begin, kOut), wide(kRows, kRank)});
    gradients.push_back({outputs.back().y, outputs.back().u, wide(kRank, kIn), wide(kOut, kRank)});
  }
  backend->Reserve(
      {.rows = kRows, .features = kIn, .lora_rank = 2 * kRank, .gradient_rows = kRows});
  const MatrixView x = Columns(all_x, 0, kIn);
  backend->Run(ops::Linear{linears, x, outputs, Store::kSet, Columns(all_x, kIn, tail)});
  ASSERT_EQ(seen.size(), 2u);  // u and y of both
  EXPECT_EQ(seen[1].a.data, all_x.data);
  EXPECT_EQ(seen[1].a.cols, kIn + 2 * kRank);
  EXPECT_EQ(seen[1].c.cols, 2 * kOut);

  seen.clear();
  backend->Run(
      ops::LinearBackward{linears, x, gradients, dx, Store::kSet, Columns(all_y, 2 * kOut, tail)});
  ASSERT_EQ(seen.size(), 6u);  // du and db of each, da of both, dx
  EXPECT_EQ(seen[5].a.data, all_y.data);
  EXPECT_EQ(seen[5].a.cols, 2 * (kOut + kRank));
  EXPECT_EQ(seen[5].c.data, dx.data);
}

TEST(CudaInPlace, MatricesOfOtherStridesAreNotOneMatrix) {
  std::vector<float> values(64);
  const auto at = [&](std::int64_t begin, std::int64_t stride) {
    return MatrixView{values.data() + begin, DType::kF32, 2, 4, stride};
  };
  EXPECT_EQ(cuda::Beside<MatrixView>({at(0, 16), at(4, 16)}).cols, 8);
  EXPECT_TRUE(cuda::Beside<MatrixView>({at(0, 16), at(4, 12)}).empty());
  EXPECT_EQ(cuda::Below({at(0, 8), at(16, 8)}).rows, 4);
  EXPECT_TRUE(cuda::Below({at(0, 8), at(16, 12)}).empty());
}

// On a GPU the first product of a shape is large enough that the backend tries several algorithms.
TEST(CudaInPlace, TheFirstProductOfAShapeAddsOnce) {
  const std::int64_t size = AllocatedBytes() ? 64 : 1024;
  for (const bool apart : {false, true}) {
    const std::shared_ptr<cuda::Device> device = MakeTestDevice(2);
    Context context(1);
    const auto backend = cuda::MakeBackendOn(context, device, DType::kBF16);
    backend->Reserve({.rows = size, .features = size});
    Arena arena(4 * BytesOf(DType::kBF16, size * size), backend->memory());
    Carver carver(arena);
    const auto filled = [&](float value) {  // (size, size)
      const MatrixView m = carver.Matrix(DType::kBF16, size, size);
      const std::vector<BFloat16> values(size * size, ToBFloat16(value));
      backend->memory().Upload(values.data(), m.data, BytesOf(m.dtype, size * size));
      return m;
    };
    const MatrixView x = filled(1.0f / static_cast<float>(size));
    const std::vector<LinearView> linears = {{.weight = filled(1), .bias = {}, .lora = {}}};
    const MatrixView y = filled(2);
    const MatrixView base = filled(4);
    const std::vector<LinearOutput> outputs = {{y, {}, apart ? base : MatrixView{}}};
    backend->Run(ops::Linear{linears, x, outputs, Store::kAdd, {}});
    const auto expect_all = [&](const MatrixView& m, float expected) {
      std::vector<BFloat16> values(size * size);
      backend->memory().Download(m.data, values.data(), BytesOf(m.dtype, size * size));
      for (const BFloat16 value : values) ASSERT_EQ(ToFloat(value), expected);
    };
    expect_all(y, apart ? 5 : 3);
    expect_all(base, 4);
  }
}

}  // namespace
}  // namespace qlora::testing_util
