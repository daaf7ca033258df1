#include "train/evaluation.h"

#include "inference/dataset_loss.h"
#include "plan/prepared_run.h"

namespace qlora {

bool Evaluation::IsDueOnStart(const TrainPosition& at) const {
  return plan_.data.held_out && plan_.options.eval_on_start && at.step == 0;
}

bool Evaluation::IsDueAfter(const TrainPosition& at) const {
  if (!plan_.data.held_out) return false;
  // The last step is always evaluated, so that the result has a figure to be judged by.
  if (at.step == plan_.total_steps) return true;
  const std::int64_t every = plan_.options.eval_steps;
  if (every > 0) return at.step % every == 0;
  // The position points to the next micro-batch: 0 when the step has finished an epoch.
  return at.epoch_batch == 0;
}

bool Evaluation::Run(TrainPosition& at) {
  if (!at.eval_due) return false;
  // Runs in the arena of training's activations, which hold nothing between steps. Stopping is
  // asked for at every progress report; an evaluation that was stopped has no result.
  const std::optional<EvalResult> result =
      EvaluateDataset(*loaded_.decoder, &loaded_.adapter, *plan_.run->data->held_out, false,
                      loaded_.memory, [this](std::int64_t done, std::int64_t total) {
                        log_.ShowEvalProgress(done, total);
                        return !stop_.Ask();
                      });
  if (!result) return false;
  at.eval_due = false;
  EvalReport report;
  report.loss = result->loss;
  report.perplexity = result->perplexity;
  report.token_accuracy = result->token_accuracy;
  report.tokens = result->tokens;
  report.seconds = result->seconds;
  if (at.step > 0) {  // the untrained model is not a candidate
    const bool accuracy = plan_.options.metric_for_best_model == "token_accuracy";
    report.best = at.best.Add(at.step, accuracy ? report.token_accuracy : report.loss, accuracy,
                              plan_.options.early_stopping_threshold);
  }
  log_.WriteEval(at.step, report);
  return report.best;
}

}  // namespace qlora
