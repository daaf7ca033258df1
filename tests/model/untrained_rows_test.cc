// Rows that no training has told apart are found, and no others.
#include "model/untrained_rows.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace qlora {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kCols = 48;

class UntrainedRowsTest : public testing::Test {
 protected:
  UntrainedRowsTest() : values_(kRows * kCols) {
    std::mt19937 random(7);
    for (float& value : values_) value = Signed(random);
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  static float Signed(std::mt19937& random) {
    return static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  }
  // Makes rows from `first` on those of tokens that are never the answer: one vector of any length,
  // and a little of their own.
  void Untrain(std::int64_t first) {
    std::mt19937 random(8);
    const std::vector<float> common(values_.begin(), values_.begin() + kCols);
    for (std::int64_t row = first; row < kRows; ++row) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        const float length = static_cast<float>(row - first + 1);
        values_[row * kCols + c] = length * (common[c] + 0.05F * Signed(random));
      }
    }
    for (std::int64_t c = 0; c < kCols; ++c) values_[c] = Signed(random);
  }
  std::vector<std::int32_t> Found() {
    const ConstMatrixView view = {values_.data(), DType::kF32, kRows, kCols, kCols};
    return FindUntrainedRows(HostMemory(), view, ids_);
  }

  std::vector<float> values_;
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(kRows);
};

TEST_F(UntrainedRowsTest, RandomRowsAreTrained) { EXPECT_THAT(Found(), testing::IsEmpty()); }

TEST_F(UntrainedRowsTest, ParallelRowsAndZerosAreNot) {
  Untrain(40);
  std::fill_n(values_.begin() + 5 * kCols, kCols, 0.0F);
  std::vector<std::int32_t> expected = {5};
  for (std::int32_t row = 40; row < kRows; ++row) expected.push_back(row);
  EXPECT_EQ(Found(), expected);
}

TEST_F(UntrainedRowsTest, AFewParallelRowsAreSynonyms) {
  Untrain(kRows - 5);
  EXPECT_THAT(Found(), testing::IsEmpty());
}

}  // namespace
}  // namespace qlora
