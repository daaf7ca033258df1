#include "step/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "dist/together.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"
#include "step/non_finite.h"

namespace qlora {
namespace {

// The factor of the losses of a window in their mean.
double MeanOver(std::int64_t supervised) { return 1.0 / static_cast<double>(supervised); }

// Runs one micro-batch and adds its gradient to the adapter's. After a NaN or Inf the window has no
// use for gradients, and only losses are computed.
void RunMicroBatch(const StepModel& model, const StepOptions& options, const StepBatch& window,
                   const StepBatch::MicroBatch& micro_batch, LoraAdapter& adapter,
                   WindowSums& sums) {
  // The memory is laid out again for each micro-batch, because rows and supervised tokens differ.
  const Decoder& decoder = model.decoder;
  const Batch& batch = micro_batch.batch;
  const ActivationShape shape =
      TrainShape(model.backend(), decoder.config(), {&adapter}, batch.rows(), batch.supervised(),
                 decoder.work_size(), options.recompute, decoder.weights().host_embedding);
  Activations activations =
      LayoutActivations(model.memory, decoder.config(), {&adapter}, decoder.precision(), shape);
  // Random numbers are keyed by seed and micro-step, not drawn in sequence: a resumed run gets the
  // same ones.
  const DropoutState dropout{
      true, options.seed, static_cast<std::uint64_t>(window.first_micro_batch + micro_batch.index),
      options.neftune_alpha};
  // The gradient of the mean loss over the window, not of a mean of means: micro-batches with more
  // supervised tokens weigh more.
  const std::vector<float> row_scale(batch.supervised(),
                                     static_cast<float>(MeanOver(window.supervised)));
  const PassInputs inputs = PrepareInputs(
      decoder, batch, {ForAllRows(&adapter, batch.rows()), dropout, row_scale}, activations);
  Forward(decoder, inputs, activations);
  const bool wanted = sums.bad_tensor.empty();
  const LossSum sum =
      wanted ? LossAndGradient(decoder, inputs, activations, adapter, options.label_smoothing)
             : Loss(decoder, inputs, activations);
  // Once the step is lost, losses are without label smoothing.
  sums.losses[micro_batch.index] = sum.loss;
  sums.hits[micro_batch.index] = sum.hits;
  if (!wanted) return;
  if (std::isfinite(sum.loss)) {
    Backward(decoder, inputs, options.recompute, activations, adapter);
  } else {
    sums.bad_tensor = FirstBadActivation(model.backend(), activations);
  }
}

// The part of `values` (one per micro-batch) that a rank has computed.
template <typename T>
std::span<T> OfRank(std::vector<T>& values, const WindowSplit& window, int rank) {
  const IndexRange mine = window.MicroBatchesOfRank(rank);
  return std::span(values).subspan(mine.begin, mine.size());
}

// Fills in the values that other ranks have computed.
template <typename T>
void ShareValues(Communicator& communicator, const WindowSplit& window, std::vector<T>& values) {
  const std::vector<Communicator::Bytes> to_each(
      window.ranks, std::as_bytes(OfRank(values, window, communicator.rank())));
  std::vector<Communicator::MutableBytes> from_each;
  for (int rank = 0; rank < window.ranks; ++rank) {
    from_each.push_back(std::as_writable_bytes(OfRank(values, window, rank)));
  }
  // What this rank has is in its place.
  from_each[communicator.rank()] = {};
  communicator.Exchange(to_each, from_each);
}

void ShareSums(Communicator& communicator, const WindowSplit& window, WindowSums& sums) {
  if (window.ranks == 1) return;
  ShareValues(communicator, window, sums.losses);
  ShareValues(communicator, window, sums.hits);
  // Every rank has the same losses here, so that all of them look for the tensor, or none.
  const auto finite = [](double loss) { return std::isfinite(loss); };
  if (std::all_of(sums.losses.begin(), sums.losses.end(), finite)) return;
  for (std::string& tensor : GatherTexts(communicator, sums.bad_tensor)) {
    if (tensor.empty()) continue;
    sums.bad_tensor = std::move(tensor);
    return;
  }
}

}  // namespace

WindowSums AddGradients(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                        LoraAdapter& adapter, GradientTree& tree) {
  WindowSums sums{std::vector<double>(batch.count), std::vector<std::int64_t>(batch.count)};
  const WindowSplit window = tree.split().WithMicroBatches(batch.count);
  const IndexRange leaves = window.LeavesOf(model.communicator.rank());
  auto next = batch.micro_batches.begin();
  for (std::int64_t leaf = leaves.begin; leaf < leaves.end; ++leaf) {
    adapter.ZeroGradients();
    const std::int64_t end = window.MicroBatchesOf(leaf).end;
    for (; next != batch.micro_batches.end() && next->index < end; ++next) {
      RunMicroBatch(model, options, batch, *next, adapter, sums);
    }
    tree.AddLeaf(model.backend(), window, leaf, adapter.gradients());
  }
  ShareSums(model.communicator, window, sums);
  tree.Finish(model.backend(), model.communicator, window, adapter.gradients());
  adapter.ZeroFrozenGradients(model.backend());
  return sums;
}

StepResult ApplyGradients(const StepModel& model, const StepOptions& options,
                          const StepBatch& batch, const WindowSums& sums, const UpdateArgs& update,
                          LoraAdapter& adapter, Optimizer& optimizer) {
  Backend& backend = model.backend();
  StepResult result;
  result.supervised = batch.supervised;
  result.rows = batch.rows;
  // In the order of micro-batches, whoever ran them.
  const double loss = std::accumulate(sums.losses.begin(), sums.losses.end(), 0.0);
  result.hits = std::accumulate(sums.hits.begin(), sums.hits.end(), std::int64_t{0});
  result.loss = loss * MeanOver(batch.supervised);
  result.learning_rate = update.learning_rate;
  // A window with a bad loss has no gradient; its NaN or Inf is reported as the norm.
  if (!std::isfinite(loss)) {
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
