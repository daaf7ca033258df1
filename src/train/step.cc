#include "train/step.h"

#include <algorithm>
#include <cmath>

#include "train/non_finite.h"

namespace qlora {

StepResult TrainStep(Backend& backend, const Decoder& decoder, const StepOptions& options,
                     std::span<const Batch> window, double learning_rate, std::int64_t updates,
                     std::uint64_t micro_step, const Arena& memory, Optimizer& optimizer) {
  LoraAdapter& adapter = *decoder.adapter();
  StepResult result;
  for (const Batch& batch : window) {
    result.supervised += batch.supervised();
    result.rows += batch.rows();
  }
  const double scale = 1.0 / static_cast<double>(result.supervised);

  adapter.ZeroGradients();
  double loss_sum = 0;
  for (const Batch& batch : window) {
    const ActivationShape shape{batch.rows(),
                                HeadRows(backend, decoder.config(), batch.supervised()), true,
                                options.recompute};
    Carver carver(memory);
    Activations activations =
        LayoutActivations(carver, decoder.config(), &adapter, decoder.precision(), shape);
    const DropoutState dropout{true, options.seed, micro_step++, options.neftune_alpha};
    decoder.Forward(batch, dropout, activations);
    const std::vector<float> row_scale(batch.supervised(), static_cast<float>(scale));
    const LossSum sum = decoder.Loss(batch, row_scale, activations);
    if (!std::isfinite(sum.loss)) {
      result.loss = result.grad_norm = sum.loss;
      result.bad_tensor = FirstBadActivation(backend, activations);
      return result;
    }
    loss_sum += sum.loss;
    result.hits += sum.hits;
    decoder.Backward(batch, dropout, activations, options.recompute);
  }
  result.loss = loss_sum * scale;

  adapter.ZeroFrozenGradients();
  const MatrixView gradients = adapter.gradients();
  result.grad_norm = std::sqrt(ReadSumOfSquares(backend, gradients));
  if (!std::isfinite(result.grad_norm)) {
    result.bad_tensor = "the gradient of " + FirstBadGradient(backend, adapter);
    return result;
  }

  UpdateArgs args = options.update;
  args.learning_rate = learning_rate;
  args.step = updates + 1;
  if (options.max_grad_norm > 0) {
    args.gradient_scale = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  }
  optimizer.Update(backend, args, options.rates, adapter);
  decoder.RefreshNorms();
  result.applied = true;
  return result;
}

}  // namespace qlora
