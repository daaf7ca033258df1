#include "train/step_time.h"

#include <algorithm>
#include <vector>

#include "base/arena.h"
#include "base/matrix.h"
#include "base/stopwatch.h"
#include "pass/flops.h"
#include "pass/pass_shape.h"
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

// FLOP/s of a product like those of the model, of `rows` rows.
double MeasureProducts(Backend& backend, const DecoderConfig& config, const Precision& precision,
                       std::int64_t rows) {
  constexpr double kSeconds = 0.1;
  const std::int64_t in = std::min<std::int64_t>(config.hidden_size, 2048);
  const std::int64_t out = std::min<std::int64_t>(config.intermediate_size, 4096);
  backend.Reserve({.rows = rows, .features = std::max(in, out)});
  Carver sizes;
  const auto carve = [&](Carver& carver) {
    return std::vector{carver.Matrix(DType::kBF16, out, in),
                       carver.Matrix(precision.activation, rows, in),
                       carver.Matrix(precision.activation, rows, out)};
  };
  carve(sizes);
  Arena memory(sizes.bytes(), backend.memory());
  Carver carver(memory);
  const std::vector<MatrixView> views = carve(carver);
  for (const MatrixView& view : views) backend.Run(ops::Zero{view});
  const LinearView linear{WeightView(ConstMatrixView(views[0])), {}, {}};
  const LinearOutput y{views[2], {}};
  const Stopwatch watch;
  double products = 0;
  do {
    backend.Run(ops::Linear{{&linear, 1}, views[1], {&y, 1}});
    ++products;
  } while (watch.seconds() < kSeconds);
  return 2 * products * static_cast<double>(rows * in * out) / watch.seconds();
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

double EstimateSeconds(Context& context, const TrainPlan& plan) {
  const PreparedRun& run = *plan.run;
  const std::unique_ptr<Backend> backend = run.start.backends->Make(context, run.base.precision);
  const std::int64_t rows = std::clamp<std::int64_t>(run.steps.needs.train_rows, 16, 512);
  const double rate = MeasureProducts(*backend, run.base.config, run.base.precision, rows);
  return kBesidesProducts * RemainingFlops(plan) / (rate * plan.ranks.ranks);
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
