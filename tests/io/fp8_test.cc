#include "io/fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/float_encoding.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/stored_tensor.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kWeight = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kScale = "model.layers.0.mlp.up_proj.weight_scale_inv";
constexpr const char* kActivation = "model.layers.0.mlp.up_proj.activation_scale";

// Codes of 1, 2, 3 and -0.5.
constexpr std::uint8_t kOne = 0x38;
constexpr std::uint8_t kTwo = 0x40;
constexpr std::uint8_t kThree = 0x44;
constexpr std::uint8_t kMinusHalf = 0xb0;

using Tensor = StoredTensor;

Tensor Codes(std::vector<std::int64_t> shape, const std::vector<std::uint8_t>& codes,
             TensorType type = Float8::kE4M3, const char* name = kWeight) {
  Tensor tensor{{name, type, std::move(shape)}, std::vector<std::byte>(codes.size())};
  std::memcpy(tensor.bytes.data(), codes.data(), codes.size());
  return tensor;
}

Tensor Floats(const char* name, DType dtype, std::vector<std::int64_t> shape,
              const std::vector<float>& values) {
  Tensor tensor{{name, dtype, std::move(shape)}, std::vector<std::byte>(values.size() * 4)};
  tensor.bytes.resize(BytesOf(dtype, values.size()));
  EXPECT_LT(EncodeFloats(dtype, values, tensor.bytes), 0);
  return tensor;
}

class Fp8Test : public ::testing::Test {
 protected:
  std::unique_ptr<TensorReader> Open(const std::vector<Tensor>& tensors) const {
    const std::filesystem::path path = folder_ / "model.safetensors";
    WriteTensors(path, tensors);
    return WithDecodedFp8(OpenSafetensors(path));
  }

  static std::vector<float> Values(const TensorReader& reader, const char* name = kWeight) {
    const TensorInfo* tensor = reader.Find(name);
    if (tensor == nullptr) {
      ADD_FAILURE() << "no " << name;
      return {};
    }
    EXPECT_EQ(tensor->dtype, DType::kF32);
    EXPECT_TRUE(reader.IsCopied(*tensor));
    std::vector<float> values(tensor->elements());
    std::memcpy(values.data(), reader.Bytes(*tensor).data(), tensor->bytes());
    reader.Release(*tensor);
    return values;
  }

  // Why the weight cannot be read.
  std::string Reason(const std::vector<Tensor>& tensors) const {
    const auto reader = Open(tensors);
    EXPECT_EQ(reader->Find(kWeight), nullptr);
    EXPECT_EQ(reader->Find(kScale), nullptr);
    if (reader->unread().size() != 1) return "";
    EXPECT_EQ(reader->unread()[0].name, kWeight);
    return reader->unread()[0].reason;
  }

  TemporaryFolder folder_;
};

TEST_F(Fp8Test, AllValuesOfE4M3) {
  for (int code = 0; code < 256; ++code) {
    const float value = FromE4M3(static_cast<std::uint8_t>(code));
    const int exponent = code / 8 % 16;
    const int mantissa = code % 8;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    const double magnitude = exponent == 0 ? mantissa / 8.0 * std::pow(2, -6)
                                           : (1 + mantissa / 8.0) * std::pow(2, exponent - 7);
    EXPECT_EQ(std::abs(value), magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
  EXPECT_EQ(FromE4M3(0x7e), 448);
  EXPECT_EQ(FromE4M3(0x01), 0x1p-9f);
  EXPECT_EQ(FromE4M3(kMinusHalf), -0.5f);
}

TEST_F(Fp8Test, OneScaleForAWeight) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {1, 1}}) {
      const auto reader =
          Open({Codes({2, 2}, {kOne, kTwo, kThree, kMinusHalf}),
                Floats(kScale, dtype, shape, {0.25f}), Floats(kActivation, dtype, {}, {7}),
                Floats("model.norm.weight", DType::kF32, {1}, {5})});
      EXPECT_THAT(Values(*reader), ElementsAre(0.25f, 0.5f, 0.75f, -0.125f));
      // The scales are no tensors of the model; others stay as they are.
      EXPECT_EQ(reader->tensors().size(), 2u);
      EXPECT_EQ(reader->Find(kScale), nullptr);
      EXPECT_EQ(reader->Find(kActivation), nullptr);
      const TensorInfo& norm = *reader->Find("model.norm.weight");
      EXPECT_FALSE(reader->IsCopied(norm));
      EXPECT_FALSE(IsDecodedFp8(*reader, norm));
      const TensorInfo& weight = *reader->Find(kWeight);
      EXPECT_TRUE(IsDecodedFp8(*reader, weight));
      EXPECT_EQ(reader->StoredAt(weight, 3).tensor->dtype, Float8::kE4M3);
      EXPECT_EQ(reader->StoredAt(weight, 3).Place(), "row 1, column 1");
    }
  }
}

// 3 x 5 in blocks of 2 x 4: the last ones are short.
TEST_F(Fp8Test, AScaleForEachBlock) {
  const Tensor weight = Codes({3, 5}, std::vector<std::uint8_t>(15, kTwo));
  const auto expected = ElementsAre(2, 2, 2, 2, 4,  //
                                    2, 2, 2, 2, 4,  //
                                    8, 8, 8, 8, 16);
  EXPECT_THAT(Values(*Open({weight, Floats(kScale, DType::kF32, {2, 2}, {1, 2, 4, 8})})), expected);
  EXPECT_THAT(Values(*Open({weight, Floats(kScale, DType::kBF16, {2, 2}, {1, 2, 4, 8})})),
              expected);
  // Powers of two, of which a file states the exponent.
  for (const TensorType& type : {TensorType(DType::kU8), TensorType(Float8::kE8M0)}) {
    EXPECT_THAT(Values(*Open({weight, Codes({2, 2}, {127, 128, 129, 130}, type, kScale)})),
                expected);
  }
  // A scale for each row.
  EXPECT_THAT(Values(*Open({Codes({2, 2}, {kOne, kOne, kTwo, kTwo}),
                            Floats(kScale, DType::kF32, {2, 1}, {3, 5})})),
              ElementsAre(3, 3, 10, 10));
  // Parts that no power of two gives.
  EXPECT_THAT(Values(*Open({Codes({1, 15}, std::vector<std::uint8_t>(15, kOne)),
                            Floats(kScale, DType::kF32, {1, 5}, {1, 2, 3, 4, 5})})),
              ElementsAre(1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5));
}

TEST_F(Fp8Test, WeightsWithoutAUsableScaleAreNotRead) {
  const Tensor weight = Codes({3, 5}, std::vector<std::uint8_t>(15, kTwo));
  EXPECT_THAT(Reason({weight}), HasSubstr(std::string("its scale '") + kScale + "' is missing"));
  std::string reason = Reason({weight, Floats(kScale, DType::kF32, {2}, {1, 2})});
  EXPECT_THAT(reason, HasSubstr(std::string("'") + kWeight + "' of shape [3, 5]: its scale"));
  EXPECT_THAT(reason, HasSubstr("has shape [2], expected [], [1], [3, 1], or a number for each"));
  EXPECT_THAT(reason, HasSubstr("such as [1, 1] for blocks of 128 x 128"));
  // More parts than values, and parts that are not equal.
  EXPECT_THAT(Reason({weight, Floats(kScale, DType::kF32, {4, 1}, {1, 2, 3, 4})}),
              HasSubstr("has shape [4, 1]"));
  EXPECT_THAT(Reason({weight, Floats(kScale, DType::kF32, {1, 4}, {1, 2, 3, 4})}),
              HasSubstr("has shape [1, 4]"));
  EXPECT_THAT(Reason({weight, Codes({}, {1}, DType::kI8, kScale)}), HasSubstr("is I8, expected"));
  EXPECT_THAT(Reason({Codes({1}, {kOne}), Floats(kScale, DType::kF32, {}, {1})}),
              HasSubstr("expected a matrix"));
}

// Memory of a larger tensor that was released serves a smaller one, also while others are read.
TEST_F(Fp8Test, SeveralWeightsOneAfterTheOther) {
  const char* other = "model.layers.0.mlp.down_proj.weight";
  const char* other_scale = "model.layers.0.mlp.down_proj.weight_scale_inv";
  const auto reader =
      Open({Codes({2, 2}, {kOne, kTwo, kThree, kMinusHalf}), Floats(kScale, DType::kF32, {}, {1}),
            Codes({1, 2}, {kTwo, kTwo}, Float8::kE4M3, other),
            Floats(other_scale, DType::kF32, {}, {2})});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Values(*reader), ElementsAre(1, 2, 3, -0.5f));
    EXPECT_THAT(Values(*reader, other), ElementsAre(4, 4));
  }
  reader->Trim();
  const std::span<const std::byte> first = reader->Bytes(*reader->Find(kWeight));
  EXPECT_THAT(Values(*reader, other), ElementsAre(4, 4));
  EXPECT_EQ(reader->Bytes(*reader->Find(kWeight)).data(), first.data());
  EXPECT_EQ(first.size(), 16u);
}

TEST_F(Fp8Test, WeightsWithoutValues) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{std::int64_t{1} << 59, 0}, {0, 4}}) {
    EXPECT_TRUE(Values(*Open({Codes(shape, {}), Floats(kScale, DType::kF32, {}, {1})})).empty());
  }
}

TEST_F(Fp8Test, ScalesMustBeNumbers) {
  const auto reader = Open({Codes({1, 1}, {kOne}), Codes({}, {255}, Float8::kE8M0, kScale)});
  ExpectRefused([&] { reader->Bytes(*reader->Find(kWeight)); },
                std::string("tensor '") + kScale + "' holds a NaN or Inf at index 0");
}

TEST_F(Fp8Test, OtherFilesStayAsTheyAre) {
  const auto reader =
      Open({Floats(kWeight, DType::kBF16, {1, 1}, {1}), Floats(kScale, DType::kF32, {}, {2})});
  EXPECT_EQ(reader->tensors().size(), 2u);
  EXPECT_EQ(reader->Find(kWeight)->dtype, DType::kBF16);
}

TEST_F(Fp8Test, Configurations) {
  const Json groups = {{"group_0", {{"weights", {{"type", "float"}, {"num_bits", 8}}}}}};
  Json compressed = {{"quant_method", "compressed-tensors"}, {"config_groups", groups}};
  EXPECT_TRUE(IsFp8Config(compressed, "c"));
  EXPECT_EQ(Fp8BlocksOf(compressed, "c"), Fp8Blocks());
  compressed["config_groups"]["group_0"]["weights"]["block_structure"] = {48, 40};
  EXPECT_EQ(Fp8BlocksOf(compressed, "c"), (Fp8Blocks{48, 40}));
  compressed["config_groups"]["group_0"]["weights"]["block_structure"] = "48x40";
  EXPECT_EQ(Fp8BlocksOf(compressed, "c"), (Fp8Blocks{48, 40}));
  for (const char* const text : {"48", "x", "48x", "x40", "48x40x2", ""}) {
    compressed["config_groups"]["group_0"]["weights"]["block_structure"] = text;
    ExpectRefused([&] { Fp8BlocksOf(compressed, "c"); }, "the rows and columns of a block");
  }
  compressed["sparsity_config"] = {{"format", "dense"}};
  EXPECT_TRUE(IsFp8Config(compressed, "c"));
  compressed["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  ExpectRefused([&] { IsFp8Config(compressed, "c"); }, "sparse (sparsity_config, sparse-24");
  compressed["sparsity_config"] = nullptr;
  compressed["config_groups"]["group_0"]["weights"]["type"] = "int";
  EXPECT_FALSE(IsFp8Config(compressed, "c"));
  EXPECT_TRUE(IsFp8Config({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, "c"));
  EXPECT_FALSE(IsFp8Config({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "c"));
  EXPECT_TRUE(IsFp8Config({{"quant_method", "fbgemm_fp8"}}, "c"));
  EXPECT_EQ(Fp8BlocksOf({{"weight_block_size", {32, 48}}}, "c"), (Fp8Blocks{32, 48}));
  ExpectRefused([&] { Fp8BlocksOf({{"weight_block_size", {32, 0}}}, "c"); }, "weight_block_size");
  EXPECT_TRUE(IsFp8Config({{"quant_method", "fp8"}, {"weight_block_size", nullptr}}, "c"));
  EXPECT_TRUE(IsFp8Config({{"quant_method", "fp8"}, {"fmt", "e4m3"}}, "c"));
  EXPECT_FALSE(IsFp8Config({{"quant_method", "bitsandbytes"}}, "c"));
  ExpectRefused(
      [&] {
        IsFp8Config({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "c");
      },
      "fmt 'e5m2' of quant_method fp8 is not supported");
}

}  // namespace
}  // namespace qlora
