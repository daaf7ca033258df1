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
double FlopsOf(const PreparedRun& run, std::int64_t rows, std::int64_t supervised,
               std::int64_t length) {
  return StepFlops(run.base.config, run.base.adapter, rows, supervised, length,
                   run.steps.needs.recompute);
}

// The same for each token, all of them trained on.
double TokenFlops(const PreparedRun& run, std::int64_t length) {
  return FlopsOf(run, 1, 1, length);
}

std::int64_t MeanLength(const Dataset& data) {
  return data.report().tokens / std::max<std::int64_t>(data.size(), 1);
}

// FLOPs of the anchor of a step; 0 without one.
double AnchorFlops(const PreparedRun& run) {
  const RunData& data = *run.data;
  if (!data.anchors) return 0;
  const BatchStream anchors(*data.anchors, data.anchor_stream);
  return kAnchorPasses * anchors.FillRate() * static_cast<double>(anchors.MaxRows()) *
         TokenFlops(run, MeanLength(*data.anchors));
}

}  // namespace

double RemainingFlops(const TrainPlan& plan) {
  const PreparedRun& run = *plan.run;
  const RunData& data = *run.data;
  const BatchStream stream(data.train, data.stream);
  double flops = static_cast<double>(data.train.report().tokens) /
                 static_cast<double>(StepsOfEpoch(plan.options, stream, 0)) *
                 TokenFlops(run, MeanLength(data.train));
  flops += AnchorFlops(run);
  return flops * static_cast<double>(plan.total_steps - (plan.resume ? plan.resume->step : 0));
}

TimeEstimate EstimateTime(Context& context, const TrainPlan& plan) {
  constexpr double kSeconds = 0.05;
  const PreparedRun& run = *plan.run;
  const DecoderConfig& config = run.base.config;
  const Precision& precision = run.base.precision;
  const ProductShape shape = {
      .rows = std::clamp<std::int64_t>(run.steps.needs.train_rows, 16, 512),
      .out = std::min<std::int64_t>(config.intermediate_size, 2048),
      .in = std::min<std::int64_t>(config.hidden_size, 2048),
      .quantized = HasQuantizedLinears(run.base.record.load_in_4bit, run.base.weights)};
  const auto rates_of = [&](const Precision& of) {
    return MeasureProducts(context, *run.start.backends, of, shape, kSeconds);
  };
  const std::vector<Recompute>& recompute = run.steps.needs.recompute;
  const auto kept = static_cast<double>(std::ranges::count(recompute, Recompute::kNone));
  const double forwards = 2 - kept / std::max<double>(1, static_cast<double>(recompute.size()));
  const double flops = kBesidesProducts * RemainingFlops(plan) / plan.ranks.ranks;
  // What is beside products takes as long with other products.
  const ProductRates rates = rates_of(precision);
  TimeEstimate estimate = {
      .seconds = flops / rates.Mean(forwards), .int8 = {}, .int8_backward = {}};
  if (!shape.quantized || precision.frozen != FrozenProducts::kFloat) return estimate;
  const ProductRates coded = rates_of({DType::kBF16, DType::kF32, FrozenProducts::kInt8});
  const double besides = (1 - 1 / kBesidesProducts) * estimate.seconds;
  const auto with = [&](const ProductRates& products) {
    return besides + flops / kBesidesProducts / products.Mean(forwards);
  };
  estimate.int8 = with({coded.forward, rates.backward});
  estimate.int8_backward = with(coded);
  return estimate;
}

StepLimit::StepLimit(const TrainPlan& plan, double peak)
    : run_(*plan.run),
      length_(MeanLength(plan.run->data->train)),
      anchor_(AnchorFlops(*plan.run)),
      peak_(peak * plan.ranks.ranks) {}

double StepLimit::ShareOf(const WindowTotals& totals, double seconds) const {
  const double flops = FlopsOf(run_, totals.rows, totals.supervised, length_) + anchor_;
  return flops / (seconds * peak_);
}

}  // namespace qlora
