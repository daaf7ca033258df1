#include "step/step.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "dist/together.h"
#include "step/anchor_base.h"
#include "step/non_finite.h"
#include "step/window_kl.h"
#include "step/window_passes.h"
#include "step/window_sums.h"

namespace qlora {
namespace {

void ShareSums(Communicator& communicator, const RankPlace& place, const WindowSplit& window,
               WindowSums& sums) {
  if (place.ranks() == 1) return;
  ShareValues(communicator, place, window, sums.values);
  // Every rank has the same sums here, so that all of them look for the tensor, or none.
  const auto finite = [](double value) { return std::isfinite(value); };
  if (std::all_of(sums.values.begin(), sums.values.end(), finite)) return;
  for (std::string& tensor : GatherTexts(communicator, sums.bad_tensor)) {
    if (tensor.empty()) continue;
    sums.bad_tensor = std::move(tensor);
    return;
  }
}

}  // namespace

WindowSums AddGradients(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                        LoraAdapter& adapter, GradientTree& tree) {
  WindowSums sums{std::vector<double>(batch.count * options.objective->sums()), batch.totals};
  const RankPlace& place = tree.place();
  const WindowSplit window = place.split.WithMicroBatches(batch.count);
  // Backward passes are in the order of micro-batches.
  std::int64_t leaf = window.LeavesOf(place.replica()).begin;
  std::int64_t done = 0;
  if (model.progress) model.progress(done);
  if (options.objective->needs_kl()) sums.totals.kl = WindowKl(model, place, batch, adapter);
  const AnchorBase base = ForwardBase(model, place, batch);
  WindowPasses passes(model, place, options, batch, base.x_out, adapter, sums);
  passes.Run(
      [&](std::int64_t m) {
        if (m == window.MicroBatchesOf(leaf).begin) adapter.ZeroGradients();
      },
      [&](std::int64_t m) {
        if (model.progress) model.progress(++done);
        if (m + 1 < window.MicroBatchesOf(leaf).end) return;
        tree.AddLeaf(model.backend(), window, leaf++, adapter.gradients());
      });
  ShareSums(model.communicator, place, window, sums);
  tree.Finish(model.backend(), model.communicator, window, adapter.gradients());
  adapter.ZeroFrozenGradients(model.backend());
  return sums;
}

StepResult ApplyGradients(const StepModel& model, const StepOptions& options,
                          const StepBatch& batch, const WindowSums& sums, const UpdateArgs& update,
                          LoraAdapter& adapter, Optimizer& optimizer) {
  Backend& backend = model.backend();
  StepResult result;
  result.totals = batch.totals;
  // In the order of micro-batches, whoever ran them.
  std::vector<double> total(options.objective->sums());
  for (std::int64_t i = 0; i < std::ssize(sums.values); ++i) {
    total[i % std::ssize(total)] += sums.values[i];
  }
  const std::vector<double> values = options.objective->Values(total, sums.totals);
  result.loss = values.front();
  result.metrics = MetricsOf(*options.objective, values, true);
  result.learning_rate = update.learning_rate;
  // A window with a bad loss has no gradient; its NaN or Inf is reported as the norm.
  if (!std::isfinite(total.front())) {
    result.grad_norm = result.loss;
    result.bad_tensor = sums.bad_tensor;
    return result;
  }
  result.grad_norm =
      std::sqrt(ReadSumOfSquares(backend, adapter.gradients(), adapter.gradient_sum()));
  if (!std::isfinite(result.grad_norm)) {
    result.bad_tensor = "the gradient of " + FirstBadGradient(backend, adapter);
    return result;
  }
  result.applied = true;

  UpdateArgs args = update;
  // Clipping is a factor of the update, so that no pass over the gradients is spent on it. The 1e-6
  // follows torch.nn.utils.clip_grad_norm_.
  if (options.max_grad_norm > 0) {
    args.gradient_scale = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  }
  optimizer.Update(backend, args, options.rates, adapter);
  RefreshNorms(backend, model.decoder.weights(), adapter);
  return result;
}

StepResult TrainStep(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                     const UpdateArgs& update, LoraAdapter& adapter, GradientTree& tree,
                     Optimizer& optimizer) {
  const WindowSums sums = AddGradients(model, options, batch, adapter, tree);
  return ApplyGradients(model, options, batch, sums, update, adapter, optimizer);
}

}  // namespace qlora
