#include "train/step.h"

#include <algorithm>
#include <cmath>

#include "train/non_finite.h"

namespace qlora {
namespace {

// Sums over micro-batches, in their order.
struct WindowSums {
  double loss = 0;
  std::int64_t hits = 0;
  std::string bad_tensor;  // where the first NaN or Inf of a forward pass appeared
};

// Adds one micro-batch to `sums`, and its gradient to the adapter's. After a NaN or Inf the window
// has no use for gradients, and only losses are computed.
void RunMicroBatch(const StepModel& model, const StepOptions& options, const Batch& batch,
                   std::int64_t micro_step, double gradient_scale, LoraAdapter& adapter,
                   WindowSums& sums) {
  // The arena is laid out again for each micro-batch, because rows and supervised tokens differ.
  const Decoder& decoder = model.decoder;
  const ActivationShape shape{batch.rows(),
                              HeadRows(model.backend, decoder.config(), batch.supervised()), true,
                              options.recompute};
  Carver carver(model.activations);
  Carver host(model.offloaded);
  Activations activations =
      LayoutActivations(carver, decoder.config(), {&adapter}, decoder.precision(), shape, &host);
  // Random numbers are keyed by seed and micro-step, not drawn in sequence: a resumed run gets the
  // same ones.
  const DropoutState dropout{true, options.seed, static_cast<std::uint64_t>(micro_step),
                             options.neftune_alpha};
  const std::vector<float> row_scale(batch.supervised(), static_cast<float>(gradient_scale));
  const PassInputs inputs = PrepareInputs(
      decoder, batch, {ForAllRows(&adapter, batch.rows()), dropout, row_scale}, activations);
  Forward(decoder, inputs, activations);
  const LossSum sum = sums.bad_tensor.empty()
                          ? LossAndGradient(decoder, inputs, activations, adapter)
                          : Loss(decoder, inputs, activations);
  sums.loss += sum.loss;
  sums.hits += sum.hits;
  if (!sums.bad_tensor.empty()) return;
  if (std::isfinite(sum.loss)) {
    Backward(decoder, inputs, options.recompute, activations, adapter);
  } else {
    sums.bad_tensor = FirstBadActivation(model.backend, activations);
  }
}

// Leaves the gradient of scale * (sum of losses) in the adapter, added up as the tree says.
WindowSums AddGradients(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                        double scale, LoraAdapter& adapter, GradientTree& tree) {
  const std::int64_t count = std::ssize(batch.micro_batches);
  const std::int64_t leaves = GradientTree::Leaves(count);
  WindowSums sums;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
    adapter.ZeroGradients();
    const std::int64_t end = GradientTree::LeafBegin(leaf + 1, count);
    for (std::int64_t m = GradientTree::LeafBegin(leaf, count); m < end; ++m) {
      RunMicroBatch(model, options, batch.micro_batches[m], batch.first_micro_batch + m, scale,
                    adapter, sums);
    }
    tree.AddLeaf(model.backend, leaf, leaves, adapter.gradients());
  }
  return sums;
}

}  // namespace

StepResult TrainStep(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                     const UpdateArgs& update, LoraAdapter& adapter, GradientTree& tree,
                     Optimizer& optimizer) {
  // The gradient of the mean loss over the window, not of a mean of means: micro-batches with more
  // supervised tokens weigh more.
  const double scale = 1.0 / static_cast<double>(batch.supervised);
  const WindowSums sums = AddGradients(model, options, batch, scale, adapter, tree);
  adapter.ZeroFrozenGradients(model.backend);

  StepResult result;
  result.supervised = batch.supervised;
  result.rows = batch.rows;
  result.hits = sums.hits;
  result.loss = sums.loss * scale;
  result.learning_rate = update.learning_rate;
  result.bad_tensor = sums.bad_tensor;
  // A window with a bad loss has no gradient; its NaN or Inf is reported as the norm.
  result.grad_norm = sums.bad_tensor.empty()
                         ? std::sqrt(ReadSumOfSquares(model.backend, adapter.gradients()))
                         : result.loss;
  if (sums.bad_tensor.empty() && !std::isfinite(result.grad_norm)) {
    result.bad_tensor = "the gradient of " + FirstBadGradient(model.backend, adapter);
  }
  result.applied = result.bad_tensor.empty();
  if (!result.applied) return result;

  UpdateArgs args = update;
  // Clipping is a factor of the update, so that no pass over the gradients is spent on it. The 1e-6
  // is that of torch.nn.utils.clip_grad_norm_.
  if (options.max_grad_norm > 0) {
    args.gradient_scale = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  }
  optimizer.Update(model.backend, args, options.rates, adapter);
  RefreshNorms(model.backend, model.decoder.weights(), adapter);
  return result;
}

}  // namespace qlora
