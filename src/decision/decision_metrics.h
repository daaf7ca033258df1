// How good probabilities are: right, calibrated, and sharp.
//
// The decision of a distribution is its first largest probability, the right one the first largest
// share of the target. The confidence is the largest probability. Equal bins hold confidences in
// (lo, hi], and 0 is in the first; other programs use [lo, hi), or other numbers of bins.
#ifndef QLORA_DECISION_DECISION_METRICS_H_
#define QLORA_DECISION_DECISION_METRICS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "decision/prediction.h"
#include "io/json_fwd.h"
#include "qlora/decision.h"

namespace qlora {

inline constexpr std::int64_t kUsualBins = 15;

// A bin of equal width with the answers in it.
struct ReliabilityBin {
  double low = 0;   // excluded, but in the first bin
  double high = 0;  // included
  std::int64_t count = 0;
  double confidence = 0;  // mean
  double accuracy = 0;    // mean share of the decision in the target
};

struct DecisionMetrics {
  std::int64_t count = 0;
  double accuracy = 0;
  double log_loss = 0;      // - sum t ln max(p, 1e-15), mean
  double brier = 0;         // sum over the options of (p - t)^2, mean: 0 to 2
  double ece = 0;           // sum of |confidence - accuracy| of the bins, weighted by their counts
  double mce = 0;           // the largest of these
  double adaptive_ece = 0;  // bins of equal counts
  // The largest share of answers, most confident first, of which at most 5 % are wrong.
  double coverage_at_5_percent_error = 0;
  std::int64_t confident_errors = 0;  // wrong with a confidence of at least 0.9
  // Of rows of one type. Nothing where undefined: AUROC of one class, kappa without chance errors.
  std::optional<double> auroc;            // noul: rows whose target is 0.5 are left out
  std::optional<double> ece_true;         // noul: of p(true) against the share of true
  std::optional<double> macro_f1;         // choice: mean over ids, of keys that occur
  std::optional<double> mae;              // score: |mean level - mean level of the target|
  std::optional<double> quadratic_kappa;  // score: of the largest group of equal levels
  std::vector<ReliabilityBin> reliability;
};

// Errors: InvalidInput for a number of bins that no calibration error has.
void CheckBins(std::int64_t bins);

// In the order of the rows. bins: as CheckBins allows.
std::vector<DecisionScore> ScoresOf(std::span<const Prediction> rows,
                                    std::int64_t bins = kUsualBins);

// rows: not empty. bins: as CheckBins allows.
DecisionMetrics MetricsOf(std::span<const Prediction> rows, std::int64_t bins = kUsualBins);

// [low, high] that hold 95 % of the values of a metric over rows that are drawn again from these,
// record by record.
struct MetricInterval {
  double low = 0;
  double high = 0;
};
struct DecisionIntervals {
  MetricInterval accuracy;
  MetricInterval log_loss;
  MetricInterval brier;
  MetricInterval ece;
};
DecisionIntervals BootstrapIntervals(std::span<const Prediction> rows,
                                     std::int64_t bins = kUsualBins, std::uint64_t seed = 0);

// Counts of answers of one question, by the right option and the decision: {"keys": [...],
// "counts": [[...], ...]}, a row for each right option.
OrderedJson ConfusionOf(std::span<const Prediction> rows);

// {"all": {...}, "noul": {...}, ...}: metrics of all rows and of each type that occurs, with null
// for what is undefined; in each `intervals` and `reliability`, and of types `confusion` by id.
OrderedJson MetricsJson(std::span<const Prediction> rows, std::int64_t bins = kUsualBins);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_METRICS_H_
