#include "step/window_passes.h"

#include <cmath>
#include <utility>

#include "dist/together.h"
#include "pass/pass_shape.h"
#include "step/non_finite.h"

namespace qlora {
WindowPasses::WindowPasses(const StepModel& model, const RankPlace& place,
                           const StepOptions& options, const StepBatch& window,
                           const ConstMatrixView& base, LoraAdapter& adapter, WindowSums& sums)
    : model_(model),
      place_(place),
      options_(options),
      window_(window),
      base_(base),
      adapter_(adapter),
      sums_(sums),
      schedule_(StageOpsOf(place.stage(), place.stages, std::ssize(window.micro_batches))),
      sizes_(model.decoder.config(), {&adapter}),
      passes_(model.memories.size()) {}

WindowPasses::Pass& WindowPasses::At(std::int64_t micro_batch) {
  return passes_[micro_batch % std::ssize(passes_)];
}

// The memory is laid out again for each micro-batch, because rows and supervised tokens differ.
void WindowPasses::Prepare(std::int64_t micro_batch) {
  const Decoder& decoder = model_.decoder;
  const StepBatch::MicroBatch& it = window_.micro_batches[micro_batch];
  Pass& pass = At(micro_batch);
  // An anchor is read as the model is used: without dropout and noise, of which the base has none.
  const bool is_anchor = window_.is_anchor(it);
  const ActivationShape shape =
      is_anchor ? AnchorShape(decoder.config(), it.batch.rows(), options_.recompute)
                : TrainShape(decoder.config(), it.batch.rows(), it.batch.supervised(),
                             options_.recompute, it.batch.unfolded_rows());
  pass.activations = LayoutActivations(model_.memories[micro_batch % std::ssize(passes_)],
                                       decoder.config(), sizes_, decoder.precision(), shape);
  // Random numbers are keyed by seed and micro-step, not drawn in sequence: a resumed run gets the
  // same ones.
  const DropoutState dropout{!is_anchor, options_.seed,
                             static_cast<std::uint64_t>(window_.first_micro_batch + it.index),
                             options_.neftune_alpha};
  std::vector<float> row_scale;
  if (!is_anchor) row_scale = options_.objective->RowScale(it.batch, sums_.totals);
  pass.inputs =
      PrepareInputs(decoder, it.batch, {ForAllRows(&adapter_, it.batch.rows()), dropout, row_scale},
                    pass.activations);
}

void WindowPasses::Receive(const StageOp& op) {
  // A gradient that waits to be sent may lie where the next micro-batch is laid out.
  if (!op.backward && message_.to == place_.rank - 1) Send();
  if (!op.backward) Prepare(op.micro_batch);
  const Pass& pass = At(op.micro_batch);
  if (op.backward && !place_.is_last_stage()) {
    Exchange(place_.rank + 1, pass.activations.dx);
  } else if (!op.backward && !place_.is_first_stage()) {
    const std::int64_t first = model_.decoder.config().layers_here().begin;
    Exchange(place_.rank - 1, pass.activations.layers[first].x_in);
  } else {
    Send();
  }
}

void WindowPasses::Send() { Exchange(-1, {}); }

void WindowPasses::Exchange(int from, const MatrixView& values) {
  const Message sent = std::exchange(message_, {});
  SendAndReceive(model_.communicator, model_.backend().memory(), sent.to, BytesIn(sent.values),
                 from, BytesIn(values));
}

void WindowPasses::RunForward(std::int64_t micro_batch) {
  Pass& pass = At(micro_batch);
  const Decoder& decoder = model_.decoder;
  Forward(decoder, pass.inputs, pass.activations);
  if (!place_.is_last_stage()) {
    message_ = {place_.rank + 1, pass.activations.x_out};
    return;
  }
  // After a NaN or Inf the window has no use for gradients, and only losses are computed.
  const bool wanted = sums_.bad_tensor.empty();
  const Objective& objective = *options_.objective;
  const StepBatch::MicroBatch& it = window_.micro_batches[micro_batch];
  const std::span<double> sums =
      std::span(sums_.values).subspan(it.index * objective.sums(), objective.sums());
  objective.Run({sums_.totals, decoder, it.batch, pass.inputs, pass.activations, nullptr,
                 window_.is_anchor(it) ? base_ : ConstMatrixView{}},
                wanted ? &adapter_ : nullptr, sums);
  pass.has_loss_gradient = wanted && std::isfinite(sums.front());
  if (wanted && !pass.has_loss_gradient) {
    sums_.bad_tensor =
        FirstBadActivation(model_.backend(), decoder.config().layers_here(), pass.activations);
  }
}

void WindowPasses::RunBackward(std::int64_t micro_batch) {
  Pass& pass = At(micro_batch);
  if (!place_.is_last_stage() || pass.has_loss_gradient) {
    Backward(model_.decoder, pass.inputs, options_.recompute, pass.activations, adapter_);
  } else {
    // Stages before this one wait for a gradient.
    model_.backend().Run(ops::Zero{pass.activations.dx});
  }
  if (!place_.is_first_stage()) message_ = {place_.rank - 1, pass.activations.dx};
}

}  // namespace qlora
