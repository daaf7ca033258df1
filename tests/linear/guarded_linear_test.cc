// The layer on a backend whose memory the host cannot touch: the bits of the CPU backend.
#include <gtest/gtest.h>

#include "backend/guarded_backend.h"
#include "qlora/linear.h"
#include "quant/quant_test_util.h"

namespace qlora {
namespace {

constexpr std::int64_t kO = 48;
constexpr std::int64_t kI = 80;
constexpr std::int64_t kR = 4;
constexpr std::int64_t kN = 5;

// All that two steps, and evaluations merged and not, compute.
std::vector<float> Results(Context& context, const compat::Matrix& weight, DType compute) {
  QLoraConfig config;
  config.r = kR;
  config.lora_dropout = 0.2;
  config.compute = compute;
  QLoraLinear layer = QLoraLinear::FromQuantized(context, weight, config, Normal(kO, 2));
  layer.SetB(MakeView(Normal(kO * kR, 3, 0.2).data(), kO, kR));
  const std::vector<float> x = Normal(kN * kI, 4);
  const std::vector<float> dy = Normal(kN * kO, 5);
  std::vector<float> y(kN * kO);
  std::vector<float> dx(kN * kI);
  std::vector<float> results;
  const auto keep = [&](const std::vector<float>& values) {
    results.insert(results.end(), values.begin(), values.end());
  };
  const auto forward = [&](std::optional<std::uint64_t> step) {
    layer.Forward(MakeView(x.data(), kN, kI), MakeView(y.data(), kN, kO), step);
    keep(y);
  };
  for (const std::uint64_t step : {1, 2}) {
    forward(step);
    layer.Backward(MakeView(x.data(), kN, kI), MakeView(dy.data(), kN, kO),
                   MakeView(dx.data(), kN, kI), step);
    keep(dx);
  }
  keep(Download<float>(HostMemory(), layer.da()));
  keep(Download<float>(HostMemory(), layer.db()));
  layer.ZeroGradients();
  keep(Download<float>(HostMemory(), layer.da()));
  layer.Merge();
  forward({});
  layer.Unmerge();
  forward({});
  return results;
}

TEST(GuardedLinear, ForwardBackwardAndMerge) {
  Context context(2);
  ContextOn device(GuardedBackends(), 2);
  const std::vector<float> w = Normal(kO * kI, 1, 0.1);
  const ConstMatrixView view = MakeView(w.data(), kO, kI);
  QuantizeOptions plain;
  plain.scale_type = ScaleType::kF32;
  compat::Options zero_points;
  zero_points.zero_point = true;
  const compat::Matrix weights[] = {Quantize(context, view), Quantize(context, view, plain),
                                    compat::Quantize(context, view, zero_points)};
  for (const compat::Matrix& weight : weights) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      EXPECT_EQ(Results(context, weight, compute), Results(device, weight, compute));
    }
  }
}

}  // namespace
}  // namespace qlora
