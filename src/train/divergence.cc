#include "train/divergence.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/matrix.h"
#include "step/loss_rise.h"

namespace qlora {
namespace {

// The root of the mean square of the adapter's values. Those of a trained adapter are near 0.01;
// NaN or Inf where the sum of squares overflows.
double SizeOfValues(LoadedRun& loaded) {
  const ConstMatrixView values = loaded.adapter.parameters();
  const double sum = ReadSumOfSquares(*loaded.backend, values, loaded.adapter.gradient_sum());
  return std::sqrt(sum / static_cast<double>(values.cols));
}

// What is wrong with the run; "" when nothing is.
std::string FindDivergence(const TrainPosition& at, LoadedRun& loaded) {
  constexpr double kLargest = 1000;
  if (at.skipped_in_a_row == 1 && at.skipped_steps < at.step) {
    return fmt::format("the last step, {}, held a NaN or Inf and changed nothing", at.step);
  }
  if (at.skipped_in_a_row > 0) {
    return fmt::format("every step from {} on held a NaN or Inf and changed nothing",
                       at.step - at.skipped_in_a_row + 1);
  }
  // Negated, so that NaN counts.
  if (const double size = SizeOfValues(loaded); !(size <= kLargest)) {
    return fmt::format("the values of the adapter are of the size {:.3g}", size);
  }
  if (HasRisen(at.start, at.losses)) {
    return fmt::format("the loss rose from {:.4f} at the start to {:.4f} at the end", at.start.mean,
                       MedianOf(at.losses.newest).median);
  }
  return {};
}

}  // namespace

std::string DescribeDivergence(const TrainOptions& options, const TrainPosition& at,
                               LoadedRun& loaded) {
  const std::string found = FindDivergence(at, loaded);
  if (found.empty()) return {};
  const bool best = options.load_best_model_at_end && at.best.step >= 0;
  return fmt::format(
      "{}: the run has diverged, and the adapter saved in {} is {}. Try a lower learning_rate, a "
      "longer warm-up or a smaller max_grad_norm",
      found, options.output_dir,
      best ? fmt::format("that of step {}, which evaluated best", at.best.step) : "of little use");
}

}  // namespace qlora
