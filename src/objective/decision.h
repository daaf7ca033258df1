// Decisions: the cross-entropy of an answer among the tokens of its labels
// (decision/decision_loss.h), mean over the questions of a window.
#ifndef QLORA_OBJECTIVE_DECISION_H_
#define QLORA_OBJECTIVE_DECISION_H_

#include "decision/decision_loss.h"
#include "objective/objective.h"

namespace qlora {

// Samples are questions, or the questions of a record behind the prefix that they share; every
// supervised row is a Choice whose kind is its QuestionType.
class DecisionObjective : public Objective {
 public:
  explicit DecisionObjective(const DecisionLossOptions& options = {}) : options_(options) {}

  std::span<const Metric> metrics() const override;
  std::int64_t sums() const override { return 4; }  // losses, hits, Brier scores, label masses
  std::vector<float> RowScale(const Batch&, const WindowTotals&) const override { return {}; }
  void Run(const ObjectivePass& pass, LoraAdapter* trained, std::span<double> sums) const override;
  std::vector<double> Values(std::span<const double> sums,
                             const WindowTotals& totals) const override;

 private:
  DecisionLossOptions options_;
};

}  // namespace qlora

#endif  // QLORA_OBJECTIVE_DECISION_H_
