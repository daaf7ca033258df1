// The rules of other libraries: torchao's arithmetic and bitsandbytes' CUDA kernels. Golden vectors
// were computed independently from their definitions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "quant/compat/cuda_tables.h"
#include "quant/oracle.h"
#include "quant/quant_test_util.h"

namespace qlora::compat {
namespace {

using testing::ElementsAreArray;

TEST(Torchao, DoubleQuantization) {
  const std::vector<float> x = IrwinHall();
  const Matrix q =
      QuantizeRowAs(x, {.scale_form = ScaleForm::kDoubleTorchao, .rule = EncodeRule::kTorchao});
  const View& v = q.view();
  EXPECT_EQ(v.nested.offset, 0x1.463a9ap+1f);
  EXPECT_THAT(std::vector<float>(v.nested.absmax, v.nested.absmax + 2),
              ElementsAreArray({0x1.22b042p+6f, 0x1.f941p+6f}));
  const auto* codes = static_cast<const std::int8_t*>(v.scales);
  EXPECT_THAT(
      std::vector<int>(codes, codes + 16),
      ElementsAreArray({11, 35, -11, 33, 9, -28, -55, -29, 28, 47, -2, 59, -1, -18, 24, 32}));
  EXPECT_EQ(Fnv1a({static_cast<const std::uint8_t*>(v.scales), 512}), 0x34078588fbe41550u);
  EXPECT_EQ(Fnv1a(PackedOf(v)), 0xb7df3314299480c1u);
  EXPECT_NEAR(Compare(x, DecodedOf(v)).rmse, 0.0917897424874736, 5e-7);
  EXPECT_EQ(Fnv1aOf(DecodedOf(v)), 0x27c5a6d3e7063c28u);

  const Matrix full = QuantizeRowAs(x, {.scale_form = ScaleForm::kDoubleTorchao});
  const std::vector<std::uint8_t> rounded_codes = CodesOf(v);
  const std::vector<std::uint8_t> full_codes = CodesOf(full.view());
  int different = 0;
  for (std::size_t i = 0; i < x.size(); ++i) different += rounded_codes[i] != full_codes[i];
  EXPECT_EQ(different, 5);
}

// All of torchao's arithmetic happens in the dtype of the weight. The hashes come from the same
// arithmetic in PyTorch.
TEST(Torchao, Bfloat16Weights) {
  std::vector<BFloat16> x;
  for (const float value : IrwinHall()) x.push_back(ToBFloat16(value));
  Context context(1);
  const Matrix q =
      Quantize(context, MakeView(x.data(), 1, std::ssize(x)),
               Options{.scale_form = ScaleForm::kDoubleTorchao, .rule = EncodeRule::kTorchao});
  const View& v = q.view();
  EXPECT_EQ(v.nested.offset, 0x1.46p+1f);
  EXPECT_THAT(std::vector<float>(v.nested.absmax, v.nested.absmax + 2),
              ElementsAreArray({0x1.22p+6f, 0x1.f8p+6f}));
  EXPECT_EQ(Fnv1a({static_cast<const std::uint8_t*>(v.scales), 512}), 0xdfb6492515b2dafeu);
  EXPECT_EQ(Fnv1a(PackedOf(v)), 0x0fa61585be31559eu);
  std::vector<BFloat16> out(x.size());
  Dequantize(context, v, MakeView(out.data(), 1, std::ssize(out)));
  EXPECT_EQ(Fnv1aOf(out), 0x6bbd4f7d2e8fac87u);
}

TEST(Torchao, RoundsTheCodebookToFourDecimals) {
  const std::vector<float> expected = {-1.0f,    -0.6962f, -0.5251f, -0.3949f, -0.2844f, -0.1848f,
                                       -0.0911f, 0.0f,     0.0796f,  0.1609f,  0.2461f,  0.3379f,
                                       0.4407f,  0.5626f,  0.7230f,  1.0f};
  EXPECT_THAT(TorchaoCodebook(DType::kF32), ElementsAreArray(expected));
}

TEST(Torchao, BlocksOfZerosDecodeToZero) {
  const std::vector<float> zeros(130, 0.0f);
  for (const ScaleForm form : {ScaleForm::kF32, ScaleForm::kDoubleTorchao}) {
    const Matrix q = QuantizeRowAs(zeros, {.scale_form = form, .rule = EncodeRule::kTorchao});
    for (const std::uint8_t code : CodesOf(q.view())) ASSERT_EQ(code, 0);
    for (const float value : DecodedOf(q.view())) ASSERT_EQ(value, 0.0f);
  }
}

TEST(CudaRule, FollowsTheKernels) {
  for (const QuantType type : {QuantType::kNf4, QuantType::kFp4}) {
    // Thresholds, their neighbours and random values, in blocks with scale 1.
    std::vector<float> x = Uniform(64 * 50, 3, -1, 1);
    for (const EncodeTable* table : {&EncodeTableOf(type), &CudaTableOf(type)}) {
      for (const float t : table->thresholds) {
        for (const float v : {t, -t, std::nextafter(t, -2.0f), std::nextafter(t, 2.0f)}) {
          x.push_back(v);
        }
      }
    }
    for (const float zero : {0.0f, -0.0f, 1e-30f, -1e-30f}) x.push_back(zero);
    x.resize((x.size() + 63) / 64 * 64);
    for (std::size_t i = 0; i < x.size(); i += 64) x[i] = 1.0f;
    const Matrix q = QuantizeRowAs(
        x, {.type = type, .scale_form = ScaleForm::kF32, .rule = EncodeRule::kBnbCuda});
    const std::vector<std::uint8_t> codes = CodesOf(q.view());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int expected = type == QuantType::kNf4 ? OracleCudaNf4(x[i]) : OracleCudaFp4(x[i]);
      ASSERT_EQ(codes[i], expected) << x[i];
    }
    const std::vector<float> zeros(128, 0.0f);
    const Matrix z = QuantizeRowAs(zeros, {.type = type, .rule = EncodeRule::kBnbCuda});
    for (const std::uint8_t code : CodesOf(z.view())) ASSERT_EQ(code, 0);
  }
}

// The codes of scales differ at ties alone; everything else is the CPU rule.
TEST(CudaRule, DoubleQuantizationTakesTheEvenNeighbour) {
  const std::vector<float> scales = Uniform(5000, 8, 1, 3);
  const DoubleQuantizedScales cpu = DoubleQuantizeScales(scales, ScaleForm::kDoubleBnb);
  const DoubleQuantizedScales cuda =
      DoubleQuantizeScales(scales, ScaleForm::kDoubleBnb, 256, EncodeRule::kBnbCuda);
  EXPECT_EQ(cpu.codes, qlora::DoubleQuantizeScales(scales).codes);
  EXPECT_EQ(cuda.nested_scales, cpu.nested_scales);
  EXPECT_EQ(cuda.offset, cpu.offset);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (cuda.codes[i] == cpu.codes[i]) continue;
    EXPECT_EQ(cuda.codes[i], cpu.codes[i] + 1) << i;
    EXPECT_EQ(cuda.codes[i] % 2, 0) << i;
  }
}

}  // namespace
}  // namespace qlora::compat
