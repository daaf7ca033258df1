// Every op of the CUDA backend against the reference backend in float64.
#include <chrono>
#include <iostream>
#include <numeric>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels.h"
#include "backend/op_cases.h"
#include "backend/test_recurrent.h"
#include "cuda/test_device.h"
#include "cuda/transfer_backend.h"
#include "qlora/error.h"

namespace qlora::testing_util {
namespace {

// The order in which a model of a GPU runs blocks, warps and lanes.
enum class Order : std::uint8_t { kForward, kBackward, kShuffled };

std::uint64_t SeedOf(Order order) {
  if (order != Order::kShuffled) return order == Order::kForward ? 0 : 1;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return 2 + static_cast<std::uint64_t>(now) % 1000000;
}

// So small that ops are cut into parts, of rows and of columns.
constexpr cuda::WorkspaceBudget kSmall = {
    .weight = 8192, .rows = 4096, .sums = 2048, .least_part = 16};
// Enough for most cases as a whole.
constexpr cuda::WorkspaceBudget kLarge = {.weight = 1 << 18, .rows = 1 << 16, .sums = 1 << 16};

std::unique_ptr<Backend> MakeOnDevice(DType compute, Order order,
                                      const cuda::WorkspaceBudget& budget) {
  static Context context(1);
  const std::uint64_t seed = SeedOf(order);
  std::cout << "order of execution: " << seed << "\n";
  return std::make_unique<TransferBackend>(
      cuda::MakeBackendOn(context, MakeTestDevice(seed), compute, budget));
}

BackendUnderTest OnDevice(const std::string& name, DType activation, DType compute, Order order,
                          const cuda::WorkspaceBudget& budget = kSmall) {
  return {.name = name,
          .make = [=] { return MakeOnDevice(compute, order, budget); },
          .precision = {activation, DType::kF32},
          .compute = compute};
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, OpTest,
    testing::Values(OnDevice("bf16", DType::kBF16, DType::kBF16, Order::kForward, kLarge),
                    OnDevice("bf16_backward", DType::kBF16, DType::kBF16, Order::kBackward),
                    OnDevice("bf16_shuffled", DType::kBF16, DType::kBF16, Order::kShuffled),
                    OnDevice("f32_shuffled", DType::kF32, DType::kF32, Order::kShuffled),
                    OnDevice("f32_activations_bf16_products_shuffled", DType::kF32, DType::kBF16,
                             Order::kShuffled)),
    NameOfParam);

// Sums of equal rows, whose order an op that adds by atomics would leave to the blocks.
TEST(CudaOps, RowsAreAddedWithTheSameBitsInEveryOrder) {
  constexpr std::int64_t kRows = 300;
  Random random(1700);
  const Matrix x = random.Normal(DType::kF32, kRows, 40, 1);
  const Matrix before = random.Normal(DType::kF32, 5, 40, 1);
  const std::vector<std::int32_t> to = RandomIndices(random, kRows, 5);
  std::vector<Matrix> sums;
  for (const Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    const std::unique_ptr<Backend> backend = MakeOnDevice(DType::kF32, order, kSmall);
    sums.push_back(before);
    backend->Run(ops::ScatterAddRows{x.view(), to, sums.back().view()});
    ExpectEqual(sums.back(), sums.front(), "sums");
  }
}

// Ops without a kernel are refused when they are given, by name.
TEST(CudaOps, LayersWithAStateAreRefused) {
  const std::unique_ptr<Backend> backend = MakeOnDevice(DType::kF32, Order::kForward, kSmall);
  const auto expect_refusal = [&](const Op& op, const char* name) {
    try {
      backend->Run(op);
      ADD_FAILURE() << name << ": expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos);
    }
  };
  constexpr Precision kFloat = {DType::kF32, DType::kF32};
  const ConvCase conv = {"conv", 3, 2, SpansOf({4})};
  ConvData c = MakeConvData(conv, kFloat, 1);
  expect_refusal(
      ops::CausalConv{conv.activation, conv.spans, c.x.view(), c.weight.view(), {}, c.y.view()},
      "CausalConv");
  expect_refusal(
      ops::CausalConvBackward{
          conv.activation, conv.spans, c.dy.view(), c.x.view(), c.weight.view(), {}, c.dx.view()},
      "CausalConvBackward");
  const DeltaCase delta = {"delta", {2, 1, 3, 2}, SpansOf({4})};
  DeltaData d = MakeDeltaData(delta, kFloat, 2);
  expect_refusal(
      ops::GatedDeltaRule{delta.shape, delta.spans, d.q.view(), d.k.view(), d.v.view(), d.a.view(),
                          d.b.view(), d.rate.view(), d.dt_bias.view(), d.o.view()},
      "GatedDeltaRule");
  expect_refusal(ops::GatedDeltaRuleBackward{delta.shape, delta.spans, d.d_o.view(), d.q.view(),
                                             d.k.view(), d.v.view(), d.a.view(), d.b.view(),
                                             d.rate.view(), d.dt_bias.view(), d.dq.view(),
                                             d.dk.view(), d.dv.view(), d.da.view(), d.db.view()},
                 "GatedDeltaRuleBackward");
  Matrix up = c.x;
  for (const auto& [act, name] :
       {std::pair(Activation::kSigmoid, "GatedActivation with a sigmoid"),
        std::pair(Activation::kIdentity, "GatedActivation with no act"),
        std::pair(Activation::kClampedSwiglu, "GatedActivation with clamps")}) {
    expect_refusal(ops::GatedActivation{act, c.x.view(), up.view(), c.y.view()}, name);
  }
  expect_refusal(ops::GatedActivationBackward{Activation::kSigmoid, c.dy.view(), c.x.view(),
                                              up.view(), c.y.view(), c.dx.view()},
                 "GatedActivationBackward with a sigmoid");
  Matrix lse = Matrix(DType::kF32, c.y.rows(), 1);
  const Matrix sinks = Matrix(DType::kF32, 1, 1);
  expect_refusal(ops::AttentionSinks{sinks.view(), lse.view(), c.y.view()}, "AttentionSinks");
}

// More copies than a launch takes.
TEST(CudaOps, CopiesOfOneCallAreAllMade) {
  constexpr std::int64_t kCopies = 20;
  constexpr std::int64_t kValues = 40;
  const std::shared_ptr<cuda::Device> device = MakeTestDevice(5);
  Memory& memory = device->memory();
  Arena arena((kCopies + 1) * kValues * sizeof(float), memory);
  const MatrixView all = MakeView(reinterpret_cast<float*>(arena.data()), kCopies + 1, kValues);
  std::vector<float> x(kValues);
  std::iota(x.begin(), x.end(), 1.0f);
  Upload(memory, std::span<const float>(x), Rows(all, 0, 1));
  std::vector<cuda::ScaledCopy> copies;
  for (std::int64_t i = 1; i <= kCopies; ++i) {
    copies.push_back({Rows(all, 0, 1), static_cast<float>(i), Rows(all, i, 1)});
  }
  cuda::CopyAll(device->runtime().stream(), copies);
  for (std::int64_t i = 1; i <= kCopies; ++i) {
    std::vector<float> expected = x;
    for (float& value : expected) value *= static_cast<float>(i);
    EXPECT_EQ(Download<float>(memory, Rows(all, i, 1)), expected) << i;
  }
}

}  // namespace
}  // namespace qlora::testing_util
