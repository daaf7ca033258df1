// Linear of few rows on the CUDA backend, straight from the 4-bit weight.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/few_rows.h"
#include "backend/test_linear.h"
#include "cuda/test_device.h"
#include "cuda/transfer_backend.h"

namespace qlora::testing_util {
namespace {

class CudaFewRows : public testing::Test {
 protected:
  CudaFewRows() {
    backend_ = std::make_unique<TransferBackend>(
        cuda::MakeBackendOn(context_, MakeTestDevice(23), DType::kBF16));
  }

  // y (N, O; float32) of a weight without adapter.
  Matrix Multiply(const Matrix& x, const WeightView& weight) {
    Matrix y(DType::kF32, x.rows(), weight.rows());
    const std::vector<LinearView> linears = {{.weight = weight, .bias = {}, .lora = {}}};
    const std::vector<LinearOutput> outputs = {{y.view(), {}}};
    backend_->Reserve({.rows = x.rows(), .features = std::max(weight.rows(), weight.cols())});
    EXPECT_TRUE(cuda::IsForFewRows(weight, x.rows()));
    backend_->Run(ops::Linear{linears, x.view(), outputs});
    return y;
  }

  Context context_{1};
  std::unique_ptr<Backend> backend_;
};

// A row of x that is 1 in one place gives a column of the weight: its codes in bfloat16 times its
// scales, exactly, so every value and every scale is found where it belongs.
TEST_F(CudaFewRows, ValuesAndScalesOfTheWeight) {
  std::uint64_t seed = 8000;
  for (const WeightKind kind : {WeightKind::kNf4, WeightKind::kNf4DoubleBnb,
                                WeightKind::kNf4DoubleBnb100, WeightKind::kNf4Block128}) {
    constexpr std::int64_t kOut = 37;
    constexpr std::int64_t kIn = 384;
    Random random(++seed);
    const TestWeight weight(kind, DType::kF32, kOut, kIn, DType::kF64, random);
    const QuantizedView q = weight.view().quantized;
    std::vector<float> scales(q.blocks());
    LoadScales(q, 0, q.blocks(), scales.data());
    for (std::int64_t first = 0; first < kIn; first += 16) {
      Matrix x = Filled(DType::kBF16, 16, kIn, 0);
      for (std::int64_t n = 0; n < 16; ++n) x.Set(n, first + n, 1);
      const Matrix y = Multiply(x, weight.view());
      for (std::int64_t n = 0; n < 16; ++n) {
        for (std::int64_t o = 0; o < kOut; ++o) {
          const std::int64_t i = o * kIn + first + n;
          const int code = q.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
          const float value = ToFloat(ToBFloat16(q.code[code])) * scales[i / q.block_size];
          ASSERT_EQ(y(n, o), value) << "weight (" << o << ", " << first + n << ")";
        }
      }
    }
  }
}

// Tails of rows, of groups and of panels of columns, columns in one part and in several. A row has
// the same bits whatever the rows beside it.
TEST_F(CudaFewRows, ShapesAndRows) {
  std::uint64_t seed = 8100;
  const std::unique_ptr<Backend> reference = MakeReferenceBackend();
  for (const auto& [out, in] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 64}, {16, 256}, {129, 320}, {72, 2112}, {24, 4160}}) {
    SCOPED_TRACE(testing::Message() << "(" << out << ", " << in << ")");
    Random random(++seed);
    const TestWeight weight(WeightKind::kNf4DoubleBnb, DType::kF32, out, in, DType::kF64, random);
    const Matrix x = random.Normal(DType::kBF16, cuda::kMostFewRows, in, 1);
    const Matrix all = Multiply(x, weight.view());
    const Matrix expected = Product(x, Transposed(weight.Values()));
    const Matrix size = Product(Abs(x), Transposed(Abs(weight.Values())));
    ExpectWithin(all, expected, Scaled(0x1p-8 + Gamma(in + 8, 0x1p-24), size), "y");
    for (const std::int64_t rows : {1, 7, 9, 17, 32, 33}) {
      Matrix some(DType::kBF16, rows, in);
      Matrix same(DType::kF32, rows, out);
      for (std::int64_t n = 0; n < rows; ++n) {
        for (std::int64_t i = 0; i < in; ++i) some.Set(n, i, x.at(n, i));
        for (std::int64_t o = 0; o < out; ++o) same.Set(n, o, all.at(n, o));
      }
      ExpectEqual(Multiply(some, weight.view()), same, "y of fewer rows");
    }
  }
}

// More linears than one launch takes, more tiles of 16 rows than blocks, so that blocks go from one
// linear to the next and fill the table again; each linear has the bits that it has alone.
TEST_F(CudaFewRows, LinearsOfAGroup) {
  constexpr std::int64_t kIn = 64;
  Random random(8150);
  std::vector<TestWeight> weights;
  for (const WeightKind kind :
       {WeightKind::kNf4, WeightKind::kNf4DoubleBnb, WeightKind::kNf4Block128, WeightKind::kNf4,
        WeightKind::kNf4DoubleBnb100}) {
    const std::int64_t out = kind == WeightKind::kNf4DoubleBnb ? 16 * 270 : 20;
    weights.emplace_back(kind, DType::kF32, out, kIn, DType::kF64, random);
  }
  const Matrix x = random.Normal(DType::kBF16, 2, kIn, 1);
  std::vector<Matrix> results;
  std::vector<LinearView> linears;
  for (const TestWeight& weight : weights) {
    results.emplace_back(DType::kF32, x.rows(), weight.view().rows());
    linears.push_back({.weight = weight.view(), .bias = {}, .lora = {}});
  }
  std::vector<LinearOutput> outputs;
  for (Matrix& y : results) outputs.push_back({y.view(), {}});
  backend_->Reserve({.rows = x.rows(), .features = 20000});
  backend_->Run(ops::Linear{linears, x.view(), outputs});
  for (std::size_t l = 0; l < weights.size(); ++l) {
    ExpectEqual(results[l], Multiply(x, weights[l].view()), "y of a linear alone");
  }
}

TEST_F(CudaFewRows, OtherWeightsAreDecoded) {
  Random random(8200);
  const auto is_for = [&](std::int64_t out, std::int64_t in, std::int64_t rows) {
    const TestWeight weight(WeightKind::kNf4, DType::kF32, out, in, DType::kF64, random);
    return cuda::IsForFewRows(weight.view(), rows);
  };
  EXPECT_TRUE(is_for(3, 128, cuda::kMostFewRows));
  EXPECT_FALSE(is_for(3, 128, cuda::kMostFewRows + 1));
  EXPECT_FALSE(is_for(64, 96, 1));
  const TestWeight dense(WeightKind::kBF16, DType::kF32, 3, 128, DType::kBF16, random);
  EXPECT_FALSE(cuda::IsForFewRows(dense.view(), 1));
}

// Elements are counted in 32 bits, and read 16 at a time.
TEST_F(CudaFewRows, LargeWeightsAndOtherAddressesAreDecoded) {
  const auto is_for = [](std::int64_t out, std::uintptr_t packed) {
    QuantizedView q;
    q.packed = reinterpret_cast<const std::uint8_t*>(packed);
    q.rows = out;
    q.cols = 64;
    return cuda::IsForFewRows(q, 1);
  };
  constexpr std::int64_t kRows = std::int64_t{1} << 26;
  EXPECT_TRUE(is_for(kRows, 8));
  EXPECT_FALSE(is_for(kRows + 1, 8));
  EXPECT_FALSE(is_for(kRows, 4));
}

}  // namespace
}  // namespace qlora::testing_util
