#include "train/step_time.h"

#include <algorithm>
#include <vector>

#include "pass/flops.h"
#include "pass/pass_shape.h"
#include "pass/product_rates.h"
#include "plan/run/prepared_run.h"

namespace qlora {
namespace {

// A step takes this much longer than its arithmetic at the rate of products: norms, attention, the
// optimizer (docs/performance.md has shares of some models).
constexpr double kBesidesProducts = 1.25;

// The base and the adapter pass an anchor forward, and the adapter passes it backward: three
// passes, where a token that is trained on has two.
constexpr double kAnchorPasses = 1.5;

// FLOPs of a step of `rows` tokens, of which `supervised` are trained on, in texts of `length`.
Flops FlopsOf(const PreparedRun& run, std::int64_t rows, std::int64_t supervised,
              std::int64_t length) {
  return StepFlops(run.base.config, run.base.adapter, run.base.weights.quantized, rows, supervised,
                   length, run.steps.needs.recompute);
}

// The same for each token, all of them trained on.
Flops TokenFlops(const PreparedRun& run, std::int64_t length) { return FlopsOf(run, 1, 1, length); }

std::int64_t MeanLength(const Dataset& data) {
  return data.report().tokens / std::max<std::int64_t>(data.size(), 1);
}

// FLOPs of the anchor of a step; 0 without one.
Flops AnchorFlops(const PreparedRun& run) {
  const RunData& data = *run.data;
  if (!data.anchors) return {};
  const BatchStream anchors(*data.anchors, data.anchor_stream);
  return kAnchorPasses * anchors.FillRate() * static_cast<double>(anchors.MaxRows()) *
         TokenFlops(run, MeanLength(*data.anchors));
}

}  // namespace

Flops RemainingFlops(const TrainPlan& plan) {
  const PreparedRun& run = *plan.run;
  const RunData& data = *run.data;
  const BatchStream stream(data.train, data.stream);
  Flops step = static_cast<double>(data.train.report().tokens) /
               static_cast<double>(StepsOfEpoch(plan.options, stream, 0)) *
               TokenFlops(run, MeanLength(data.train));
  step += AnchorFlops(run);
  return static_cast<double>(plan.total_steps - (plan.resume ? plan.resume->step : 0)) * step;
}

TimeEstimate EstimateOf(const Flops& flops, FrozenProducts frozen, const ProductRates& plain,
                        const ProductRates& bf16, const ProductRates& coded) {
  const double products = SecondsOf(flops, {plain.forward, plain.backward, plain.mean()});
  // What is beside products takes as long with other products.
  const double besides = (kBesidesProducts - 1) * products;
  // All but the products with quantized weights stays in bfloat16.
  const double int8 = besides + SecondsOf(flops, {coded.forward, bf16.backward, bf16.mean()});
  const double both = besides + SecondsOf(flops, {coded.forward, coded.backward, bf16.mean()});
  if (frozen == FrozenProducts::kFloat) return {besides + products, int8, both};
  return {frozen == FrozenProducts::kInt8 ? both : int8, {}, {}};
}

TimeEstimate EstimateTime(Context& context, const TrainPlan& plan) {
  constexpr double kSeconds = 0.3;
  const PreparedRun& run = *plan.run;
  const DecoderConfig& config = run.base.config;
  const Precision& precision = run.base.precision;
  const ProductShape shape = {.rows = std::clamp<std::int64_t>(run.steps.needs.train_rows, 16, 512),
                              .out = std::min<std::int64_t>(config.intermediate_size, 2048),
                              .in = std::min<std::int64_t>(config.hidden_size, 2048),
                              .quantized = run.base.weights.quantized.any()};
  const Flops flops = 1.0 / plan.ranks.ranks * RemainingFlops(plan);
  const bool is_bf16 = precision.activation == DType::kBF16;
  std::vector<Precision> precisions = {{precision.activation, DType::kF32}};
  if (shape.quantized) precisions.push_back({DType::kBF16, DType::kF32, FrozenProducts::kInt8});
  if (shape.quantized && !is_bf16) precisions.push_back({DType::kBF16, DType::kF32});
  const std::vector<ProductRates> rates =
      MeasureProducts(context, *run.start.backends, precisions, shape, kSeconds);
  const ProductRates& plain = rates.front();
  if (!shape.quantized) {
    return {EstimateOf(flops, FrozenProducts::kFloat, plain, plain, plain).seconds, {}, {}};
  }
  return EstimateOf(flops, precision.frozen, plain, is_bf16 ? plain : rates[2], rates[1]);
}

StepLimit::StepLimit(const TrainPlan& plan, const FlopRates& rates)
    : run_(*plan.run),
      length_(MeanLength(plan.run->data->train)),
      anchor_(AnchorFlops(*plan.run)),
      rates_(rates),
      ranks_(plan.ranks.ranks) {}

double StepLimit::ShareOf(const WindowTotals& totals, double seconds) const {
  Flops flops = FlopsOf(run_, totals.rows, totals.supervised, length_);
  flops += anchor_;
  return SecondsOf(flops, rates_) / (seconds * ranks_);
}

}  // namespace qlora
