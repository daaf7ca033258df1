// Random frozen weights of every storage that a linear accepts.
#ifndef QLORA_TESTS_BACKEND_TEST_WEIGHT_H_
#define QLORA_TESTS_BACKEND_TEST_WEIGHT_H_

#include <stdexcept>
#include <vector>

#include "backend/backend.h"
#include "backend/test_util.h"
#include "ggml/encode.h"

namespace qlora::testing_util {

enum class WeightKind {
  kWide,
  kF32,
  kF16,
  kBF16,
  kNf4,  // float32 scales
  kNf4DoubleBnb,
  kNf4DoubleBnb100,  // nested blocks of 100 scales
  kNf4Block128,
  kQ4_0,  // ggml's blocks: of 32 values
  kIq4Nl,
  kQ8_0,
  kMxfp4,
  kQ4_K,  // of 256
  kQ6_K,
};

// A weight (O, I) with its storage. The 4-bit kinds have random nibbles and random scales, not the
// image of some dense weight: the decoded values are what matters here. Blocks are encoded.
class TestWeight {
 public:
  TestWeight(WeightKind kind, DType wide, std::int64_t rows, std::int64_t cols, DType precise,
             Random& random) {
    switch (kind) {
      case WeightKind::kWide:
        dense_ = random.Normal(wide, rows, cols, 0.2, precise);
        return;
      case WeightKind::kF32:
        dense_ = random.Normal(DType::kF32, rows, cols, 0.2, precise);
        return;
      case WeightKind::kF16:
        dense_ = random.Normal(DType::kF16, rows, cols, 0.2, precise);
        return;
      case WeightKind::kBF16:
        dense_ = random.Normal(DType::kBF16, rows, cols, 0.2, precise);
        return;
      case WeightKind::kQ4_0:
        MakeBlocks(BlockFormat::kQ4_0, rows, cols, random);
        return;
      case WeightKind::kIq4Nl:
        MakeBlocks(BlockFormat::kIQ4_NL, rows, cols, random);
        return;
      case WeightKind::kQ8_0:
        MakeBlocks(BlockFormat::kQ8_0, rows, cols, random);
        return;
      case WeightKind::kMxfp4:
        MakeBlocks(BlockFormat::kMXFP4, rows, cols, random);
        return;
      case WeightKind::kQ4_K:
        MakeBlocks(BlockFormat::kQ4_K, rows, cols, random);
        return;
      case WeightKind::kQ6_K:
        MakeBlocks(BlockFormat::kQ6_K, rows, cols, random);
        return;
      default:
        MakeQuantized(kind, rows, cols, random);
    }
  }
  explicit TestWeight(Matrix dense) : dense_(std::move(dense)) {}

  // The same weight; one of the wide type in another one.
  TestWeight In(DType wide) const {
    TestWeight copy = *this;
    if (dense_.dtype() == DType::kF64 || dense_.dtype() == DType::kC128) {
      copy.dense_ = Convert(dense_, wide);
    }
    return copy;
  }

  bool quantized() const { return dense_.empty(); }
  std::int64_t rows() const { return view().rows(); }
  WeightView view() const {
    if (!quantized()) return dense_.view();
    if (!block_bytes_.empty()) {
      BlockView blocks = blocks_;
      blocks.data = block_bytes_.data() + 1;  // of any alignment
      return blocks;
    }
    QuantizedView q = shape_;
    q.packed = packed_.data();
    q.code = kNf4Codebook.data();
    q.scales = scales_.data();
    if (!nested_code_.empty()) q.nested.map = nested_code_.data();
    if (!nested_scales_.empty()) q.nested.absmax = nested_scales_.data();
    return q;
  }

  // Multiplies the scale of a block of a weight with float32 scales.
  void ScaleBlock(std::int64_t block, float factor) {
    float scale;
    unsigned char* at = scales_.data() + block * sizeof(scale);
    std::memcpy(static_cast<void*>(&scale), at, sizeof(scale));
    scale *= factor;
    std::memcpy(at, static_cast<const void*>(&scale), sizeof(scale));
  }

  // All values (O, I) in float64.
  Matrix Values() const {
    if (!quantized()) return Convert(dense_, DType::kF64);
    const WeightView weight = view();
    Matrix values(DType::kF32, weight.rows(), weight.cols());
    for (std::int64_t r = 0; r < weight.rows(); ++r) {
      ReadRow(weight, r, 0, weight.cols(), values.view().Row<float>(r));
    }
    return Convert(values, DType::kF64);
  }

 private:
  void MakeQuantized(WeightKind kind, std::int64_t rows, std::int64_t cols, Random& random) {
    shape_.rows = rows;
    shape_.cols = cols;
    shape_.block_size = kind == WeightKind::kNf4Block128 ? 128 : 64;
    packed_.resize((rows * cols + 1) / 2);
    for (std::uint8_t& byte : packed_) byte = static_cast<std::uint8_t>(random.Below(256));
    const std::int64_t blocks = shape_.blocks();
    const auto scale = [&] { return static_cast<float>(0.05 + 0.2 * std::abs(random.Normal())); };
    switch (kind) {
      case WeightKind::kNf4DoubleBnb:
      case WeightKind::kNf4DoubleBnb100:
        shape_.scale_type = ScaleType::kDoubleBnb;
        shape_.nested.block_size = kind == WeightKind::kNf4DoubleBnb ? 256 : 100;
        shape_.nested.offset = 0.3f;
        for (int i = 0; i < 256; ++i) nested_code_.push_back(static_cast<float>(i - 128) / 128);
        for (std::int64_t i = 0; i < blocks; i += shape_.nested.block_size) {
          nested_scales_.push_back(scale());
        }
        for (std::int64_t i = 0; i < blocks; ++i) {
          Append(static_cast<std::uint8_t>(random.Below(256)));
        }
        return;
      default:
        shape_.scale_type = ScaleType::kF32;
        for (std::int64_t i = 0; i < blocks; ++i) Append(scale());
    }
  }

  void MakeBlocks(BlockFormat format, std::int64_t rows, std::int64_t cols, Random& random) {
    blocks_ = {.format = format, .rows = rows, .cols = cols};
    block_bytes_.resize(1 + BytesOf(blocks_));
    std::vector<float> row(cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (float& value : row) value = static_cast<float>(0.2 * random.Normal());
      std::byte* to = block_bytes_.data() + 1 + r * blocks_.row_bytes();
      const std::int64_t bad =
          EncodeBlocks(format, row.data(), cols / InfoOf(format).values, nullptr, to);
      if (bad >= 0) throw std::logic_error("a value of a test does not fit into its format");
    }
  }

  template <typename T>
  void Append(T value) {
    const std::size_t at = scales_.size();
    scales_.resize(at + sizeof(T));
    std::memcpy(scales_.data() + at, static_cast<const void*>(&value), sizeof(T));
  }

  Matrix dense_;
  QuantizedView shape_;  // without pointers
  std::vector<std::uint8_t> packed_;
  std::vector<unsigned char> scales_;
  std::vector<float> nested_code_;
  std::vector<float> nested_scales_;
  BlockView blocks_;  // without the pointer
  std::vector<std::byte> block_bytes_;
};

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_TEST_WEIGHT_H_
