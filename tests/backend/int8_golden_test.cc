// Products in 8 bits against numbers of tools/make_int8_goldens.py, which rounds exact fractions:
// the codes, and the bits of the results of every backend.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "backend/int8/products.h"
#include "backend/simd_kernels.h"
#include "backend/test_linear.h"
#include "base/matrix.h"
#include "test_build.h"

namespace qlora::testing_util {
namespace {

constexpr const char* kCases[] = {"plain", "outlier", "edges", "ties", "heavy"};

// Any NaN is the same one.
std::uint32_t BitsOf(float value) {
  constexpr std::uint32_t kNan = 0x7fc00000;
  return std::isnan(value) ? kNan : std::bit_cast<std::uint32_t>(value);
}
std::vector<std::uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(BitsOf(value));
  return bits;
}

class Int8Golden : public testing::TestWithParam<const char*> {
 protected:
  Int8Golden()
      : golden_(nlohmann::json::parse(std::ifstream(SourceDir() / "tests/golden/int8" /
                                                    (std::string(GetParam()) + ".json")))),
        m_(golden_["m"]),
        n_(golden_["n"]),
        k_(golden_["k"]),
        packed_(golden_["packed"].get<std::vector<std::uint8_t>>()),
        absmax_(Floats("absmax")),
        x_(Floats("x")),
        dy_(Floats("dy")) {}

  std::vector<float> Floats(const char* name) const {
    std::vector<float> floats;
    for (const std::uint32_t bits : golden_[name]) floats.push_back(std::bit_cast<float>(bits));
    return floats;
  }
  WeightView weight() const {
    QuantizedView q;
    q.packed = packed_.data();
    q.rows = n_;
    q.cols = k_;
    q.code = kNf4Codebook.data();
    q.scales = absmax_.data();
    return q;
  }

  void ExpectCodes(const std::vector<float>& values, std::int64_t cols, const std::string& name) {
    for (std::int64_t r = 0; r < m_; ++r) {
      SCOPED_TRACE(name + " row " + std::to_string(r));
      const std::span<const float> all(values);
      const int8::CodedRow row(all.subspan(r * cols, cols));
      std::vector<std::int8_t> codes;
      for (const auto& group : golden_[name + "_q"][r]) {
        for (const int code : group) codes.push_back(static_cast<std::int8_t>(code));
      }
      EXPECT_EQ(row.codes, codes);
      EXPECT_EQ(BitsOf(row.scales), golden_[name + "_s"][r].get<std::vector<std::uint32_t>>());
      EXPECT_EQ(row.spikes, golden_[name + "_spikes"][r].get<std::vector<std::int64_t>>());
    }
  }

  void ExpectResults(Backend& backend) {
    backend.Reserve({.rows = m_, .features = std::max(n_, k_), .gradient_rows = m_});
    std::vector<float> y(m_ * n_);
    std::vector<float> dx(m_ * k_);
    const LinearView linear = {weight(), {}, {}};
    const ConstMatrixView x = MakeView(x_.data(), m_, k_);
    const LinearOutput output = {MakeView(y.data(), m_, n_), {}};
    backend.Run(ops::Linear{{&linear, 1}, x, {&output, 1}});
    EXPECT_EQ(BitsOf(y), golden_["y"].get<std::vector<std::uint32_t>>());
    const LinearGradient gradient = {MakeView(dy_.data(), m_, n_), {}, {}, {}};
    backend.Run(ops::LinearBackward{{&linear, 1}, x, {&gradient, 1}, MakeView(dx.data(), m_, k_)});
    EXPECT_EQ(BitsOf(dx), golden_["dx"].get<std::vector<std::uint32_t>>());
  }

  const nlohmann::json golden_;
  const std::int64_t m_;
  const std::int64_t n_;
  const std::int64_t k_;
  const std::vector<std::uint8_t> packed_;
  const std::vector<float> absmax_;
  const std::vector<float> x_;
  const std::vector<float> dy_;
};

TEST_P(Int8Golden, Codes) {
  const int8::CodedWeight coded(weight());
  EXPECT_EQ(coded.codes, golden_["codes"].get<std::vector<std::int8_t>>());
  EXPECT_EQ(BitsOf(coded.scales), golden_["sw"].get<std::vector<std::uint32_t>>());
  std::vector<float> excess(coded.excess.empty() ? 0 : n_ * k_);
  for (const auto& [row, col, bits] :
       golden_["excess"].get<std::vector<std::array<std::uint32_t, 3>>>()) {
    excess[row * k_ + col] = std::bit_cast<float>(bits);
  }
  EXPECT_EQ(coded.excess, excess);
  ExpectCodes(x_, k_, "x");
  std::vector<float> scaled = dy_;
  for (std::int64_t i = 0; i < m_ * n_; ++i) scaled[i] *= coded.scales[i % n_];
  ExpectCodes(scaled, n_, "dy");
}

TEST_P(Int8Golden, Results) {
  ExpectResults(*MakeReferenceBackend(FrozenProducts::kInt8));
  for (const SimdKernels& kernels : AllSimdKernels()) {
    SCOPED_TRACE(NameOf(kernels));
    SetSimdKernels(kernels);
    Context context(2);
    ExpectResults(*MakeCpuBackend(context, {DType::kF32, FrozenProducts::kInt8}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Int8Golden, testing::ValuesIn(kCases),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace qlora::testing_util
