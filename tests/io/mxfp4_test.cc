#include "io/mxfp4.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/float_encoding.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/stored_tensor.h"
#include "io/test_util.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kExperts = 2, kOut = 3, kGroups = 2;
constexpr const char* kName = "model.layers.0.mlp.experts.down_proj";

class Mxfp4Test : public ::testing::Test {
 protected:
  using Tensor = StoredTensor;

  // Bytes of many values; scales from 2^-127 to 2^126.
  Mxfp4Test() {
    for (std::int64_t i = 0; i < kExperts * kOut * kGroups * 16; ++i) {
      blocks_.bytes.push_back(static_cast<std::byte>(37 * i + i / 7));
    }
    for (std::int64_t i = 0; i < kExperts * kOut * kGroups; ++i) {
      scales_.bytes.push_back(static_cast<std::byte>(23 * i));
    }
  }

  std::unique_ptr<TensorReader> Open(const std::vector<Tensor>& tensors) const {
    const std::filesystem::path path = folder_ / "model.safetensors";
    WriteTensors(path, tensors);
    return WithMxfp4Blocks(OpenSafetensors(path));
  }

  // As transformers computes it.
  double Value(std::int64_t expert, std::int64_t row, std::int64_t col) const {
    constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const std::int64_t block = (expert * kOut + row) * kGroups + col / 32;
    const auto byte = std::to_integer<unsigned>(blocks_.bytes[block * 16 + col % 32 / 2]);
    const unsigned code = col % 2 == 0 ? byte & 15 : byte >> 4;
    const double magnitude = kValues[code & 7];
    return std::ldexp((code & 8) != 0 ? -magnitude : magnitude,
                      std::to_integer<int>(scales_.bytes[block]) - 127);
  }

  std::string Reason(const std::vector<Tensor>& tensors) const {
    const auto reader = Open(tensors);
    EXPECT_EQ(reader->Find(std::string(kName) + ".0"), nullptr);
    return reader->unread().size() == 1 ? reader->unread()[0].reason : "";
  }

  TemporaryFolder folder_;
  Tensor blocks_{{std::string(kName) + "_blocks", DType::kU8, {kExperts, kOut, kGroups, 16}}, {}};
  Tensor scales_{{std::string(kName) + "_scales", DType::kU8, {kExperts, kOut, kGroups}}, {}};
};

TEST_F(Mxfp4Test, EveryExpertIsAMatrixOfTheSameValues) {
  const Tensor other{{"model.norm.weight", DType::kF32, {1}}, std::vector<std::byte>(4)};
  const auto reader = Open({blocks_, scales_, other});
  EXPECT_EQ(reader->tensors().size(), 3u);
  EXPECT_NE(reader->Find("model.norm.weight"), nullptr);
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const TensorInfo* matrix = reader->Find(fmt::format("{}.{}", kName, e));
    ASSERT_NE(matrix, nullptr);
    EXPECT_EQ(matrix->shape, (std::vector<std::int64_t>{kOut, 32 * kGroups}));
    EXPECT_TRUE(reader->IsCopied(*matrix));
    std::vector<float> values(matrix->elements());
    DecodeFloats(matrix->dtype, reader->Bytes(*matrix), values);
    for (std::int64_t i = 0; i < matrix->elements(); ++i) {
      const std::int64_t cols = 32 * kGroups;
      ASSERT_EQ(values[i], static_cast<float>(Value(e, i / cols, i % cols))) << e << ' ' << i;
    }
    EXPECT_EQ(reader->StoredAt(*matrix, 70).tensor->name, blocks_.info.name);
    EXPECT_EQ(reader->StoredAt(*matrix, 70).element, (e * kOut * 32 * kGroups + 70) / 2);
    reader->Release(*matrix);
  }
}

TEST_F(Mxfp4Test, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(Reason({blocks_}), HasSubstr("its scales '" + scales_.info.name + "' are missing"));
  Tensor narrow = scales_;
  narrow.info.shape = {kExperts, kOut * kGroups};
  EXPECT_THAT(Reason({blocks_, narrow}), HasSubstr("expected U8 [E, out, in / 32, 16]"));
  Tensor flat = blocks_;
  flat.info.shape = {kExperts, kOut, kGroups * 16};
  EXPECT_THAT(Reason({flat, scales_}), HasSubstr("expected U8 [E, out, in / 32, 16]"));
  // As many matrices as a header says, of nothing.
  Tensor many = blocks_;
  many.info.shape = {std::int64_t{1} << 40, 0, 1, 16};
  many.bytes.clear();
  Tensor none = scales_;
  none.info.shape = {std::int64_t{1} << 40, 0, 1};
  none.bytes.clear();
  EXPECT_THAT(Reason({many, none}), HasSubstr("expected U8 [E, out, in / 32, 16]"));
  scales_.bytes.back() = std::byte{255};
  const auto reader = Open({blocks_, scales_});
  EXPECT_NO_THROW(reader->Bytes(*reader->Find(std::string(kName) + ".0")));
  try {
    reader->Bytes(*reader->Find(std::string(kName) + ".1"));
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds a NaN at index 11"));
  }
}

TEST_F(Mxfp4Test, KnowsItsConfiguration) {
  EXPECT_TRUE(IsMxfp4Config({{"quant_method", "mxfp4"}}, "config.json"));
  EXPECT_FALSE(IsMxfp4Config({{"quant_method", "fp8"}}, "config.json"));
}

}  // namespace
}  // namespace qlora
