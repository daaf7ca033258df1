#include "step/window_kl.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "objective/answer_logprobs.h"
#include "objective/stage_forward.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"
#include "step/window_sums.h"

namespace qlora {

double WindowKl(const StepModel& model, const RankPlace& place, const StepBatch& batch,
                const LoraAdapter& adapter) {
  EvalMemory activations_of(model.decoder, AdaptersOf(&adapter), model.memories.front());
  std::vector<double> ratios(batch.count);
  for (const StepBatch::MicroBatch& it : batch.micro_batches) {
    for (const Batch& rows : it.mismatched) {
      Activations& activations = activations_of.ForRows(rows.rows(), rows.unfolded_rows());
      const PassInputs inputs =
          PrepareInputs(model.decoder, rows, {ForAllRows(&adapter, rows.rows())}, activations);
      ForwardStage(model.communicator, place, model.decoder, inputs, activations);
      if (!place.is_last_stage()) continue;
      std::vector<double> logprobs;
      Loss(model.decoder, inputs, activations, &logprobs);
      const std::vector<double> answers = AnswerLogprobs(rows, logprobs, 1);
      for (std::int64_t s = 0; s < rows.sequences(); ++s) {
        ratios[it.index] += answers[s] - rows.reference[s];
      }
    }
  }
  ShareValues(model.communicator, place, place.split.WithMicroBatches(batch.count), ratios);
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  return std::max(0.0, sum / static_cast<double>(batch.totals.samples));
}

}  // namespace qlora
