// The operation graphs of attention compute it and its gradient: a library that interprets them in
// the place of cuDNN, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cuda/device/cudnn_groups.h"
#include "backend/test_attention.h"
#include "gpu_host/host_cudnn.h"

namespace qlora::cuda {
namespace {

using testing_util::AttentionCase;
using testing_util::AttentionData;
using testing_util::Matrix;

// Of plans: longer than the sequences, and far shorter than on a GPU, because the interpreter is
// slow.
constexpr std::int64_t kLength = 72;

template <typename AnyAttention>
void RunOnGraphs(const AnyAttention& op) {
  const Cudnn library = gpu_host::HostCudnn();
  constexpr std::size_t kAlignment = 256;
  std::vector<std::byte> bytes((std::size_t{8} << 20) + kAlignment, std::byte{0xff});
  std::byte* room =
      bytes.data() + kAlignment - reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment;
  std::vector<std::byte> numbers(kNumbersBytes);
  const CudnnGroups made = GroupsOf(op, {room, bytes.size() - kAlignment},
                                    library.TakesEmptySequences(), numbers.data());
  ASSERT_EQ(made.problem, "");
  std::memcpy(numbers.data(), made.numbers.data(), made.numbers.size() * sizeof(std::int32_t));
  const float one = 1;
  const float hidden = -std::numeric_limits<float>::infinity();
  const auto window = static_cast<float>(op.shape.window);
  for (const CudnnGroup& group : made.groups) {
    AttentionPlanShape shape = group.shape;
    shape.length = kLength;
    const AttentionPlan plan(library, {.handle = nullptr, .device_json = "{}"}, shape);
    std::vector<CudnnOperand> operands = group.operands;
    operands.insert(operands.end(), {{kScale, &op.shape.scale},
                                     {kOne, &one},
                                     {kWindow, &window},
                                     {kHiddenPadding, &hidden},
                                     {kHiddenFuture, &hidden},
                                     {kHiddenPast, &hidden}});
    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    for (const CudnnOperand& operand : operands) {
      ids.push_back(operand.id);
      data.push_back(const_cast<void*>(operand.data));
    }
    plan.Run(gpu_host::HandleOf(shape), ids, data, nullptr);
  }
}

// |found - expected| / |expected|, of all elements together.
double RelativeError(const Matrix& found, const Matrix& expected) {
  double difference = 0;
  double size = 0;
  for (std::int64_t r = 0; r < found.rows(); ++r) {
    for (std::int64_t c = 0; c < found.cols(); ++c) {
      difference += std::norm(found.at(r, c) - expected.at(r, c));
      size += std::norm(expected.at(r, c));
    }
  }
  return std::sqrt(difference / size);
}

void ExpectAttention(std::int64_t heads, std::int64_t kv_heads, std::int64_t window) {
  SCOPED_TRACE(testing::Message() << heads << ", " << kv_heads << ", window " << window);
  const AttentionShape shape = {.heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = 16,
                                .scale = 0.25f,
                                .softcap = 0,
                                .window = window};
  const AttentionCase c = {"graph", shape, testing_util::Packed({70, 61, 0, 64, 66})};
  AttentionData data =
      testing_util::MakeAttentionData(c, {DType::kBF16, DType::kF32}, DType::kBF16, 7600);
  RunOnGraphs(ops::Attention{c.shape, c.spans, data.q.view(), data.k.view(), data.v.view(),
                             data.o.view(), data.lse.view()});
  RunOnGraphs(ops::AttentionBackward{c.shape, c.spans, data.d_o.view(), data.q.view(),
                                     data.k.view(), data.v.view(), data.o.view(), data.lse.view(),
                                     data.dq.view(), data.dk.view(), data.dv.view()});
  AttentionData expected = data.In(DType::kF64);
  const auto reference = MakeReferenceBackend();
  expected.Forward(*reference, c);
  expected.Backward(*reference, c);
  EXPECT_LT(RelativeError(data.o, expected.o), 4e-3);
  EXPECT_LT(RelativeError(data.lse, expected.lse), 1e-5);
  EXPECT_LT(RelativeError(data.dq, expected.dq), 1e-2);
  EXPECT_LT(RelativeError(data.dk, expected.dk), 1e-2);
  EXPECT_LT(RelativeError(data.dv, expected.dv), 1e-2);
}

TEST(DeviceCudnnGraph, ComputesAttention) { ExpectAttention(2, 2, 0); }
TEST(DeviceCudnnGraph, ComputesAttentionOfGroups) { ExpectAttention(4, 2, 0); }
TEST(DeviceCudnnGraph, ComputesWindows) { ExpectAttention(6, 2, 40); }

}  // namespace
}  // namespace qlora::cuda
