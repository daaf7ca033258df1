// What a run trains for: how the outputs of a forward pass become a loss, the gradient of that
// loss, and the numbers that a step reports.
//
//   supervised.h   -log p of the supervised tokens
//   decision.h     -log p of an answer among the labels of a question
//   preference.h   losses of chosen and rejected answers, and of answers with labels
//   anchored.h     one of these, and the divergence from the base on other texts
//
// A step and an evaluation run the same objective: a step asks for gradients too. Sums of
// micro-batches are added in the order of the window on every rank, so that an objective gives the
// same bits on any number of ranks.
#ifndef QLORA_OBJECTIVE_OBJECTIVE_H_
#define QLORA_OBJECTIVE_OBJECTIVE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/batch.h"
#include "pass/decoder.h"
#include "qlora/metrics.h"

namespace qlora {

struct Metric {
  std::string_view name;
  bool in_steps = true;  // false: evaluations alone report it
  bool in_evals = true;  // false: steps alone do
  bool higher_is_better = false;
};

// The totals of a window of micro-batches, or of an evaluation, known before the first pass.
// Gradients are divided by them in Objective::Run, and sums in Objective::Values.
struct WindowTotals {
  std::int64_t supervised = 0;  // tokens that are trained on
  std::int64_t rows = 0;        // all tokens
  std::int64_t chosen = 0;      // tokens that are trained on, of the first sequences of samples
  std::int64_t samples = 0;
  std::int64_t anchors = 0;  // tokens of the anchor that are predicted
  double kl = 0;             // of the model to its reference, where the objective needs it
};

// A micro-batch whose forward pass is done.
struct ObjectivePass {
  const WindowTotals& totals;
  const Decoder& decoder;
  const Batch& batch;
  const PassInputs& inputs;
  Activations& activations;
  // Where not null, log p(target) of each supervised row is appended, in row order.
  std::vector<double>* logprobs = nullptr;
  // (N, D) of an anchor: x_out of the base; empty of what the objective trains on.
  ConstMatrixView base = {};
};

class Objective {
 public:
  virtual ~Objective() = default;

  // What a step and an evaluation report, the loss first. Logs, display, report,
  // metric_for_best_model and Python walk this list.
  virtual std::span<const Metric> metrics() const = 0;
  // The doubles that a micro-batch adds to the sums of its window.
  virtual std::int64_t sums() const = 0;

  // Batches need log-probabilities under a reference (Batch::reference), with tokens weighted by
  // ld_alpha as in objective/answer_logprobs.h.
  virtual bool needs_reference() const { return false; }
  virtual double ld_alpha() const { return 1; }
  // WindowTotals::kl is needed: max(0, the mean of log p - log p_ref over the answers of other
  // prompts of the window).
  virtual bool needs_kl() const { return false; }

  // (M) the factor of the loss of each supervised row, as far as it is known before the pass.
  virtual std::vector<float> RowScale(const Batch& batch, const WindowTotals& totals) const = 0;
  // Writes the sums of a micro-batch, not divided by any total: sums of several data sets are added
  // as they are. The first is NaN or Inf where the pass has no usable loss.
  // trained: where not null, the gradient of the mean loss of the window with respect to x_out goes
  // to activations.dx, and the gradient of a trained head is added to `trained`.
  virtual void Run(const ObjectivePass& pass, LoraAdapter* trained,
                   std::span<double> sums) const = 0;
  // The values of metrics(), from the sums of all micro-batches.
  virtual std::vector<double> Values(std::span<const double> sums,
                                     const WindowTotals& totals) const = 0;
};

// The metrics of evaluations, of all objectives, that metric_for_best_model may name.
inline constexpr auto kBestMetrics = std::to_array<std::string_view>(
    {"loss", "token_accuracy", "accuracy", "brier", "rewards/accuracies", "rewards/margins"});
// The one of this name. Errors: InvalidInput where the objective has none; the message lists those
// it has.
const Metric& MetricNamed(const Objective& objective, std::string_view name);
// The values of Objective::Values with their names, without the loss. of_steps: those that steps
// report, else those of evaluations. A NaN is a value that this window does not have.
std::vector<MetricValue> MetricsOf(const Objective& objective, std::span<const double> values,
                                   bool of_steps);

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_OBJECTIVE_H_
