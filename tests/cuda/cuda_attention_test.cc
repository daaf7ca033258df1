// Attention on the CUDA backend beyond the cases of all backends: every head dim that has kernels,
// rows that can be copied 16 bytes at a time, long keys that are cut into parts, many spans, and
// a library of attention in their place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/test_attention.h"
#include "base/arena.h"
#include "cuda/test_device.h"
#include "cuda/transfer_backend.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {
namespace {

constexpr std::uint64_t kSeed = 17;

AttentionShape ShapeOf(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                       float softcap = 0, std::int64_t window = 0) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
          .softcap = softcap,
          .window = window};
}

// |a - b| / |b|, of all elements together.
double RelativeError(const Matrix& a, const Matrix& b) {
  double difference = 0;
  double size = 0;
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      difference += std::norm(a.at(r, c) - b.at(r, c));
      size += std::norm(b.at(r, c));
    }
  }
  return std::sqrt(difference / size);
}
double LargestError(const Matrix& a, const Matrix& b) {
  double largest = 0;
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      const double error = std::abs(a.at(r, c) - b.at(r, c));
      largest = error <= largest ? largest : error;  // NaN stays
    }
  }
  return largest;
}

class CudaAttention : public testing::Test {
 protected:
  CudaAttention()
      : device_(MakeTestDevice(kSeed)),
        direct_(cuda::MakeBackendOn(context_, device_, DType::kBF16)) {}

  std::unique_ptr<Backend> MakeTransfer(DType compute = DType::kBF16) {
    return std::make_unique<TransferBackend>(cuda::MakeBackendOn(context_, device_, compute));
  }

  // Errors against the reference in float64, from the same rounded operands.
  void ExpectAccurate(const AttentionCase& c, const AttentionData& found, bool backward) {
    AttentionData expected = found.In(DType::kF64);
    expected.Forward(*reference_, c);
    EXPECT_LT(RelativeError(found.o, expected.o), 4e-3);
    EXPECT_LT(LargestError(found.lse, expected.lse), 1e-4);
    if (!backward) return;
    expected.Backward(*reference_, c);
    EXPECT_LT(RelativeError(found.dq, expected.dq), 1e-2);
    EXPECT_LT(RelativeError(found.dk, expected.dk), 1e-2);
    EXPECT_LT(RelativeError(found.dv, expected.dv), 1e-2);
  }

  // A copy on the device whose rows begin at multiples of 16 bytes, NaN between them.
  MatrixView Aligned(const Matrix& m) {
    const std::int64_t stride = (m.cols() + 7) / 8 * 8 + 8;
    std::vector<std::byte> host(BytesOf(m.dtype(), m.rows() * stride), std::byte{0xff});
    const ConstMatrixView from = m.view();
    for (std::int64_t r = 0; r < m.rows(); ++r) {
      std::memcpy(host.data() + BytesOf(m.dtype(), r * stride),
                  static_cast<const std::byte*>(from.data) + BytesOf(m.dtype(), r * from.stride),
                  BytesOf(m.dtype(), m.cols()));
    }
    Arena& arena = arenas_.emplace_back(host.size(), device_->memory());
    device_->memory().Upload(host.data(), arena.data(), host.size());
    return {arena.data(), m.dtype(), m.rows(), m.cols(), stride};
  }
  Matrix Fetched(const MatrixView& view) {
    Matrix m(view.dtype, view.rows, view.cols);
    const MatrixView to = m.view();
    for (std::int64_t r = 0; r < view.rows; ++r) {
      device_->memory().Download(
          static_cast<const std::byte*>(view.data) + BytesOf(view.dtype, r * view.stride),
          static_cast<std::byte*>(to.data) + BytesOf(view.dtype, r * to.stride),
          BytesOf(view.dtype, view.cols));
    }
    return m;
  }

  Context context_{1};
  std::shared_ptr<cuda::Device> device_;
  std::unique_ptr<Backend> direct_;
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  std::vector<Arena> arenas_;
};

constexpr Precision kBFloat16 = {DType::kBF16, DType::kF32};

TEST_F(CudaAttention, EveryHeadDim) {
  const std::unique_ptr<Backend> backend = MakeTransfer();
  std::uint64_t seed = 7000;
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {"8", ShapeOf(2, 1, 8), Packed({35, 70})},
           {"32", ShapeOf(2, 2, 32, 0, 33), Packed({66})},
           {"64", ShapeOf(6, 2, 64), Packed({70, 33})},
           {"80", ShapeOf(2, 1, 80), {{0, 40, 0, 64}}},
           {"96", ShapeOf(2, 2, 96, 8), Packed({65})},
           {"128", ShapeOf(4, 1, 128, 0, 40), Packed({3, 67})},
           {"192", ShapeOf(1, 1, 192), Packed({34})},
           {"256", ShapeOf(2, 1, 256), Packed({66})},
           // The end of the window is within a tile of keys.
           {"window_127", ShapeOf(1, 1, 64, 0, 127), Packed({200})},
           // Hidden scores overflow.
           {"large_scores", ShapeOf(2, 1, 64), Packed({90}), 8},
       }) {
    SCOPED_TRACE(c.name);
    AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, ++seed);
    backend->Reserve(LimitsOf(c));
    data.Forward(*backend, c);
    data.Backward(*backend, c);
    ExpectAccurate(c, data, true);

    // The same where rows are copied as vectors.
    direct_->Reserve(LimitsOf(c));
    const AttentionData blank = MakeAttentionData(c, kBFloat16, DType::kBF16, seed);
    const MatrixView q = Aligned(data.q), k = Aligned(data.k), v = Aligned(data.v);
    const MatrixView o = Aligned(blank.o), lse = Aligned(blank.lse), d_o = Aligned(data.d_o);
    const MatrixView dq = Aligned(blank.dq), dk = Aligned(blank.dk), dv = Aligned(blank.dv);
    direct_->Run(ops::Attention{c.shape, c.spans, q, k, v, o, lse});
    direct_->Run(ops::AttentionBackward{c.shape, c.spans, d_o, q, k, v, o, lse, dq, dk, dv});
    ExpectEqual(Fetched(o), data.o, "o");
    ExpectEqual(Fetched(lse), data.lse, "lse");
    ExpectEqual(Fetched(dq), data.dq, "dq");
    ExpectEqual(Fetched(dk), data.dk, "dk");
    ExpectEqual(Fetched(dv), data.dv, "dv");
  }
}

// Keys in several parts; the bits of a span do not depend on the spans beside it.
TEST_F(CudaAttention, DecodesLongKeys) {
  const std::unique_ptr<Backend> backend = MakeTransfer();
  std::uint64_t seed = 7100;
  for (const AttentionCase& c : std::vector<AttentionCase>{
           // More parts of all spans together than one span may have; first, before the room of
           // other cases is there.
           {"parts_of_spans",
            ShapeOf(1, 1, 16),
            {{0, 1, 0, 4090}, {1, 1, 4090, 4090}, {2, 1, 8180, 4090}}},
           {"one_part", ShapeOf(4, 2, 64), {{0, 1, 0, 256}}},
           {"two_parts", ShapeOf(4, 2, 64), {{0, 1, 0, 257}}},
           {"batch", ShapeOf(4, 2, 32), {{0, 1, 0, 700}, {1, 1, 700, 1}, {2, 1, 701, 1300}}},
           {"odd_head_dim", ShapeOf(2, 1, 13, 6), {{0, 1, 0, 600}}},
           {"several_rows", ShapeOf(8, 2, 16, 0, 290), {{0, 4, 0, 600}}},
           {"window_in_one_part", ShapeOf(2, 1, 16, 0, 40), {{0, 1, 0, 900}}},
           {"large_group", ShapeOf(36, 2, 16), {{0, 1, 0, 520}}},
           {"beside_long_queries", ShapeOf(2, 1, 16), {{0, 40, 0, 300}, {40, 1, 300, 400}}},
           {"head_dim_256", ShapeOf(2, 1, 256), {{0, 1, 0, 300}}},
           // More than 32 parts to join, and parts of more than 128 keys.
           {"many_parts", ShapeOf(2, 1, 16), {{0, 1, 0, 2200}}},
           {"long_parts", ShapeOf(1, 1, 64), {{0, 1, 0, 8400}, {1, 1, 8400, 4200}}},
       }) {
    SCOPED_TRACE(c.name);
    AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, ++seed);
    BackendLimits limits = LimitsOf(c);
    limits.gradient_rows = 0;  // whose room would serve for parts
    backend->Reserve(limits);
    data.Forward(*backend, c);
    ExpectAccurate(c, data, false);
    AttentionData separate = MakeAttentionData(c, kBFloat16, DType::kBF16, seed);
    for (const AttentionSpan& span : c.spans) {
      AttentionCase one = c;
      one.spans = {span};
      separate.Forward(*backend, one);
    }
    ExpectEqual(data.o, separate.o, "o");
    ExpectEqual(data.lse, separate.lse, "lse");
  }
}

// More spans than one launch has, some of them empty.
TEST_F(CudaAttention, ManySpans) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 150; ++i) lengths.push_back(i * 7 % 4);
  AttentionCase c = {"many", ShapeOf(2, 1, 16), Packed(lengths)};
  for (const DType compute : {DType::kBF16, DType::kF32}) {
    const std::unique_ptr<Backend> backend = MakeTransfer(compute);
    AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, 7200);
    backend->Reserve(LimitsOf(c));
    data.Forward(*backend, c);
    data.Backward(*backend, c);
    ExpectAccurate(c, data, true);
  }
  c.spans.clear();
  for (std::int64_t n = 0; n < 70; ++n) c.spans.push_back({n, 1, 4 * n, 1 + n % 4});
  const std::unique_ptr<Backend> backend = MakeTransfer();
  AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, 7201);
  backend->Reserve(LimitsOf(c));
  data.Forward(*backend, c);
  ExpectAccurate(c, data, false);
}

// Heads that are too long for the tiles.
TEST_F(CudaAttention, LongHeads) {
  const std::unique_ptr<Backend> backend = MakeTransfer();
  const AttentionCase c = {"long_heads", ShapeOf(2, 1, 300), Packed({21})};
  AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, 7300);
  backend->Reserve(LimitsOf(c));
  data.Forward(*backend, c);
  data.Backward(*backend, c);
  ExpectAccurate(c, data, true);
}

TEST_F(CudaAttention, NoRows) {
  const std::unique_ptr<Backend> backend = MakeTransfer();
  const AttentionCase c = {"no_rows", ShapeOf(2, 1, 16), Packed({0})};
  AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, 7400);
  backend->Reserve(LimitsOf(c));
  data.Forward(*backend, c);
  data.Backward(*backend, c);
}

// The library of the device, which counts what it runs and what it declines.
struct Calls {
  int run = 0;
  int declined = 0;
};
class CountingLibrary final : public cuda::AttentionLibrary {
 public:
  CountingLibrary(std::unique_ptr<cuda::AttentionLibrary> library, Calls& calls)
      : library_(std::move(library)), calls_(calls) {}
  bool Run(cuda::Stream stream, const ops::Attention& op, std::span<std::byte> room) override {
    return Counted(library_->Run(stream, op, room));
  }
  bool Run(cuda::Stream stream, const ops::AttentionBackward& op,
           std::span<std::byte> room) override {
    return Counted(library_->Run(stream, op, room));
  }

 private:
  bool Counted(bool runs) {
    ++(runs ? calls_.run : calls_.declined);
    return runs;
  }
  std::unique_ptr<cuda::AttentionLibrary> library_;
  Calls& calls_;
};

class CudaAttentionLibrary : public CudaAttention {
 protected:
  void SetUp() override {
    std::unique_ptr<cuda::AttentionLibrary> library = MakeTestAttention();
    if (library == nullptr) GTEST_SKIP() << "this device has no library of attention";
    device_ = MakeTestDevice(kSeed, std::make_unique<CountingLibrary>(std::move(library), calls_));
  }

  // Both passes, from operands with aligned rows.
  void ExpectAccurateOnDevice(const AttentionCase& c, const BackendLimits& limits, DType compute,
                              bool deterministic = false,
                              const cuda::WorkspaceBudget& budget = {}) {
    SCOPED_TRACE(c.name);
    const std::unique_ptr<Backend> backend =
        cuda::MakeBackendOn(context_, device_, compute, budget);
    backend->SetDeterministic(deterministic);
    backend->Reserve(limits);
    AttentionData data = MakeAttentionData(c, kBFloat16, DType::kBF16, 7500);
    const MatrixView q = Aligned(data.q), k = Aligned(data.k), v = Aligned(data.v);
    const MatrixView o = Aligned(data.o), lse = Aligned(data.lse), d_o = Aligned(data.d_o);
    const MatrixView dq = Aligned(data.dq), dk = Aligned(data.dk), dv = Aligned(data.dv);
    backend->Run(ops::Attention{c.shape, c.spans, q, k, v, o, lse});
    if (c.covers_all_rows() && limits.gradient_rows > 0) {
      backend->Run(ops::AttentionBackward{c.shape, c.spans, d_o, q, k, v, o, lse, dq, dk, dv});
    }
    data.o = Fetched(o);
    data.lse = Fetched(lse);
    data.dq = Fetched(dq);
    data.dk = Fetched(dk);
    data.dv = Fetched(dv);
    ExpectAccurate(c, data, limits.gradient_rows > 0);
  }
  Calls calls_;
};

TEST_F(CudaAttentionLibrary, RunsPassesOfTraining) {
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {"groups", ShapeOf(4, 2, 64), Packed({200, 70})},
           {"window", ShapeOf(2, 1, 128, 0, 40), Packed({260})},
           {"no_groups_and_an_empty_span", ShapeOf(2, 2, 64, 0, 500), Packed({130, 0, 131})},
       }) {
    calls_ = {};
    ExpectAccurateOnDevice(c, LimitsOf(c), DType::kBF16);
    EXPECT_EQ(calls_.run, 2);
  }
}

TEST_F(CudaAttentionLibrary, IsNotAskedForGradientsInAFixedOrder) {
  const AttentionCase c = {"groups", ShapeOf(4, 2, 64), Packed({200, 70})};
  ExpectAccurateOnDevice(c, LimitsOf(c), DType::kBF16, true);
  EXPECT_EQ(calls_.run + calls_.declined, 1);
}

TEST_F(CudaAttentionLibrary, IsNotAskedForOthers) {
  const AttentionCase sequence = {"float32_or_generation", ShapeOf(2, 1, 16), Packed({70})};
  ExpectAccurateOnDevice(sequence, LimitsOf(sequence), DType::kF32);
  BackendLimits forward = LimitsOf(sequence);
  forward.gradient_rows = 0;
  ExpectAccurateOnDevice(sequence, forward, DType::kBF16);
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {"cap", ShapeOf(2, 1, 16, 8), Packed({70})},
           {"more_keys", ShapeOf(2, 1, 16), {{0, 40, 0, 70}}},
       }) {
    ExpectAccurateOnDevice(c, LimitsOf(c), DType::kBF16);
  }
  EXPECT_EQ(calls_.run + calls_.declined, 0);
}

TEST_F(CudaAttentionLibrary, OwnKernelsRunWhatItDeclines) {
  const AttentionCase odd = {"head_dim", ShapeOf(2, 1, 24), Packed({260})};
  ExpectAccurateOnDevice(odd, LimitsOf(odd), DType::kBF16);
  EXPECT_EQ(calls_.declined, 2);
  const AttentionCase groups = {"room", ShapeOf(4, 2, 64), Packed({700})};
  calls_ = {};
  ExpectAccurateOnDevice(groups, LimitsOf(groups), DType::kBF16, false, cuda::kLeanBudget);
  EXPECT_EQ(calls_.declined, 1);  // the gradient, which needs room
}

// Room for the longest sequence, not for all rows.
TEST_F(CudaAttentionLibrary, ComputesInGroupsWhatDoesNotFitAtOnce) {
  for (const AttentionCase& c : std::vector<AttentionCase>{
           // More rows than fit into what the plan adds for a kernel of the library, too.
           {"groups", ShapeOf(16, 2, 128), Packed({100, 20, 0, 90, 80, 31, 60})},
           {"window", ShapeOf(16, 2, 128, 0, 40), Packed({41, 100, 99, 100, 30})},
       }) {
    BackendLimits limits = LimitsOf(c);
    limits.gradient_length = 100;
    calls_ = {};
    ExpectAccurateOnDevice(c, limits, DType::kBF16);
    EXPECT_EQ(calls_.run, 2);
  }
}

}  // namespace
}  // namespace qlora::testing_util
