#include "step/anchor_base.h"

#include "objective/stage_forward.h"
#include "pass/eval_memory.h"

namespace qlora {
namespace {

MatrixView LayoutAnchorBase(Carver& carver, const DecoderConfig& config, const Precision& precision,
                            std::int64_t rows) {
  return carver.Matrix(precision.wide, rows, config.hidden_size);
}

}  // namespace

AnchorBase ForwardBase(const StepModel& model, const RankPlace& place, const StepBatch& batch) {
  AnchorBase base;
  if (batch.micro_batches.empty() || !batch.is_anchor(batch.micro_batches.back())) return base;
  const Decoder& decoder = model.decoder;
  const Batch& rows = batch.micro_batches.back().batch;
  EvalMemory activations_of(decoder, AdaptersOf(nullptr), model.memories.front());
  Activations& activations = activations_of.ForRows(rows.rows(), rows.unfolded_rows());
  const PassInputs inputs =
      PrepareInputs(decoder, rows, {ForAllRows(nullptr, rows.rows())}, activations);
  ForwardStage(model.communicator, place, decoder, inputs, activations);
  if (!place.is_last_stage()) return base;
  base.memory = Arena(BytesOfAnchorBase(decoder.config(), decoder.precision(), rows.rows()),
                      decoder.backend().memory());
  Carver carver(base.memory);
  const MatrixView x_out =
      LayoutAnchorBase(carver, decoder.config(), decoder.precision(), rows.rows());
  decoder.backend().Run(ops::Copy{activations.x_out, x_out});
  base.x_out = x_out;
  return base;
}

std::size_t BytesOfAnchorBase(const DecoderConfig& config, const Precision& precision,
                              std::int64_t rows) {
  Carver plan;
  LayoutAnchorBase(plan, config, precision, rows);
  return plan.bytes();
}

}  // namespace qlora
