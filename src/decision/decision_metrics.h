// How good probabilities are: right, calibrated, and sharp.
//
// The decision of a distribution is its first largest probability, the right one the first largest
// share of the target. The confidence is the largest probability. Equal bins hold confidences in
// (lo, hi], and 0 is in the first; other programs use [lo, hi), or other numbers of bins.
#ifndef QLORA_DECISION_DECISION_METRICS_H_
#define QLORA_DECISION_DECISION_METRICS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "decision/prediction.h"
#include "io/json_fwd.h"
#include "qlora/decision.h"

namespace qlora {

inline constexpr std::int64_t kUsualBins = 15;

// Errors: InvalidInput for a number of bins that no calibration error has.
void CheckBins(std::int64_t bins);

// In the order of the rows. bins: as CheckBins allows.
std::vector<DecisionScore> ScoresOf(std::span<const Prediction> rows,
                                    std::int64_t bins = kUsualBins);

// {"all": {...}, "noul": {...}, ...}: metrics of all rows and of each type that occurs, with null
// for what is undefined; in each `intervals` and `reliability`, and of types `confusion` by id.
//
// log_loss: -sum t ln max(p, 1e-15), mean. brier: sum over the options of (p - t)^2, mean: 0 to 2.
// ece: sum of |confidence - accuracy| of the bins, weighted by their counts; mce: the largest of
// these; adaptive_ece: bins of equal counts. coverage_at_5_percent_error: the largest share of
// answers, most confident first, of which at most 5 % are wrong. confident_errors: wrong with a
// confidence of at least 0.9. intervals: [low, high] that hold 95 % of the values of a metric over
// rows that are drawn again from these, record by record.
//
// Of rows of one type. noul: auroc, null for one class, without rows whose target is 0.5; ece_true,
// of p(true) against the share of true. choice: macro_f1, mean over ids, of keys that occur. score:
// mae, |mean level - mean level of the target|; quadratic_kappa of the largest group of equal
// levels, null without chance errors.
OrderedJson MetricsJson(std::span<const Prediction> rows, std::int64_t bins = kUsualBins);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_METRICS_H_
