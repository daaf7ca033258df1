#include "step/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "dist/together.h"
#include "step/non_finite.h"
#include "step/window_passes.h"

namespace qlora {
namespace {

// The part of `values` (one per micro-batch) that a replica has computed.
template <typename T>
std::span<T> OfReplica(std::vector<T>& values, const WindowSplit& window, int replica) {
  const IndexRange mine = window.MicroBatchesOfReplica(replica);
  return std::span(values).subspan(mine.begin, mine.size());
}

// Gives every rank the values that the last stage of each replica has computed.
template <typename T>
void ShareValues(Communicator& communicator, const RankPlace& place, const WindowSplit& window,
                 std::vector<T>& values) {
  const int last = place.stages - 1;
  std::vector<Communicator::Bytes> to_each(static_cast<std::size_t>(place.ranks()));
  std::vector<Communicator::MutableBytes> from_each(to_each.size());
  for (int replica = 0; replica < window.replicas; ++replica) {
    from_each[place.RankOf(replica, last)] =
        std::as_writable_bytes(OfReplica(values, window, replica));
  }
  if (place.stage() == last) {
    to_each.assign(to_each.size(), std::as_bytes(OfReplica(values, window, place.replica())));
    from_each[place.rank] = {};  // in its place already
  }
  communicator.Exchange(to_each, from_each);
}

void ShareSums(Communicator& communicator, const RankPlace& place, const WindowSplit& window,
               WindowSums& sums) {
  if (place.ranks() == 1) return;
  ShareValues(communicator, place, window, sums.losses);
  ShareValues(communicator, place, window, sums.hits);
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

double MeanOver(std::int64_t supervised) { return 1.0 / static_cast<double>(supervised); }

WindowSums AddGradients(const StepModel& model, const StepOptions& options, const StepBatch& batch,
                        LoraAdapter& adapter, GradientTree& tree) {
  WindowSums sums{std::vector<double>(batch.count), std::vector<std::int64_t>(batch.count)};
  const RankPlace& place = tree.place();
  const WindowSplit window = place.split.WithMicroBatches(batch.count);
  // Backward passes are in the order of micro-batches.
  std::int64_t leaf = window.LeavesOf(place.replica()).begin;
  std::int64_t done = 0;
  if (model.progress) model.progress(done);
  WindowPasses passes(model, place, options, batch, adapter, sums);
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
