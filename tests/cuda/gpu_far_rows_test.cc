// Operands whose rows are more than 2^32 elements apart, as in matrices that no test can fill:
// kernels count elements in 64 bits.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace qlora {
namespace {

constexpr std::int64_t kCols = 32;
constexpr std::int64_t kApart = (std::int64_t{1} << 32) + kCols;  // elements

// Row r as bytes of the device, which the host may touch while it has access.
std::span<std::byte> RowOf(const MatrixView& m, std::int64_t r) {
  return {static_cast<std::byte*>(m.data) + BytesOf(m.dtype, r * m.stride),
          BytesOf(m.dtype, kCols)};
}

// Value i is (i % 7) / divisor.
void Fill(const MatrixView& m, float divisor) {
  const gpu_host::Access access;
  for (std::int64_t i = 0; i < 2 * kCols; ++i) {
    const float value = static_cast<float>(i % 7) / divisor;
    if (m.dtype == DType::kF32) {
      m.Row<float>(i / kCols)[i % kCols] = value;
    } else {
      m.Row<BFloat16>(i / kCols)[i % kCols] = ToBFloat16(value);
    }
  }
  for (const std::int64_t r : {0, 1}) {
    gpu_host::ShadowWrittenByHost(RowOf(m, r).data(), RowOf(m, r).size());
  }
}

std::vector<std::byte> StoredIn(const MatrixView& m) {
  const gpu_host::Access access;
  std::vector<std::byte> bytes;
  for (const std::int64_t r : {0, 1}) {
    const std::span<const std::byte> row = RowOf(m, r);
    bytes.insert(bytes.end(), row.begin(), row.end());
  }
  return bytes;
}

class GpuFarRows : public testing::TestWithParam<DType> {
 protected:
  ~GpuFarRows() override {
    for (std::byte* data : allocated_) gpu_host::Free(data);
  }
  std::byte* Allocate(std::size_t bytes) {
    allocated_.push_back(gpu_host::Allocate(bytes));
    return allocated_.back();
  }
  // Matrices (2, kCols).
  std::vector<MatrixView> Near(std::int64_t count, DType dtype) {
    std::vector<MatrixView> made;
    for (std::int64_t i = 0; i < count; ++i) {
      made.push_back({Allocate(BytesOf(dtype, 2 * kCols)), dtype, 2, kCols, kCols});
    }
    return made;
  }
  std::vector<MatrixView> Far(std::int64_t count, DType dtype) {
    std::vector<MatrixView> made;
    std::vector<std::byte*> first;
    for (std::int64_t i = 0; i < count; ++i) first.push_back(Allocate(BytesOf(dtype, kCols)));
    gpu_host::SkipAddresses(BytesOf(dtype, kApart));
    for (std::byte* const row : first) {
      const auto stride = static_cast<std::size_t>(Allocate(BytesOf(dtype, kCols)) - row);
      made.push_back({row, dtype, 2, kCols, static_cast<std::int64_t>(stride / BytesOf(dtype, 1))});
      EXPECT_GT(made.back().stride, std::int64_t{1} << 32);
    }
    return made;
  }

  Context context_{1};
  std::shared_ptr<cuda::Device> device_ = testing_util::MakeTestDevice(0);
  std::unique_ptr<Backend> backend_ = cuda::MakeBackendOn(context_, device_, GetParam());

 private:
  std::vector<std::byte*> allocated_;
};

TEST_P(GpuFarRows, AreReadAndWritten) {
  const MatrixView far = Far(1, GetParam())[0];
  const std::vector<MatrixView> near = Near(2, GetParam());
  Fill(near[0], 1);
  backend_->Run(ops::Copy{near[0], far});
  backend_->Run(ops::Copy{far, near[1]});
  device_->runtime().Synchronize();
  EXPECT_EQ(StoredIn(far), StoredIn(near[0]));
  EXPECT_EQ(StoredIn(near[1]), StoredIn(near[0]));
}

TEST_P(GpuFarRows, HaveTheSameAttention) {
  const AttentionShape shape = {
      .heads = 2, .kv_heads = 2, .head_dim = kCols / 2, .scale = 0.25f, .softcap = 0, .window = 0};
  const std::vector<AttentionSpan> spans = {{0, 2, 0, 2}};
  backend_->Reserve({.rows = 2,
                     .features = kCols,
                     .heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim});
  const auto attention = [&](const std::vector<MatrixView>& m) {
    for (const int i : {0, 1, 2}) Fill(m[i], static_cast<float>(3 + i));
    MatrixView lse = Near(1, DType::kF32)[0];
    lse.cols = shape.heads;
    backend_->Run(ops::Attention{shape, spans, m[0], m[1], m[2], m[3], lse});
    device_->runtime().Synchronize();
    return StoredIn(m[3]);
  };
  const std::vector<std::byte> expected = attention(Near(4, GetParam()));
  EXPECT_EQ(attention(Far(4, GetParam())), expected);
}

INSTANTIATE_TEST_SUITE_P(Types, GpuFarRows, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace qlora
