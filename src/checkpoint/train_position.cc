#include "checkpoint/train_position.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace qlora {

void TrainPosition::Advance(const StepBatch& batch, const StepResult& result,
                            const DataCursor& next, std::int64_t start_steps) {
  ++step;
  // A skipped step has consumed its data all the same: step, position and tokens advance.
  micro_step = batch.first_micro_batch + batch.count - (batch.has_anchor ? 1 : 0);
  epoch = next.epoch;
  epoch_batch = next.position;
  tokens += batch.totals.supervised;
  skipped_in_a_row = result.applied ? 0 : skipped_in_a_row + 1;
  skipped_steps += result.applied ? 0 : 1;
  // Losses that are not finite would stay in the means for ever.
  loss_spike = result.applied && losses.Add(result.loss);
  if (!result.applied) return;
  start.Add(result.loss, start_steps);
  loss_sum += result.loss;
  ++loss_steps;
}

double TrainPosition::mean_loss() const {
  return loss_steps > 0 ? loss_sum / static_cast<double>(loss_steps)
                        : std::numeric_limits<double>::quiet_NaN();
}

namespace {

// visit(key, member) for everything that a checkpoint stores. One list serves writing, with a const
// Position, and reading.
template <typename Position, typename Visit>
void ForEachMember(Position& p, const Visit& visit) {
  visit("global_step", p.step);
  visit("micro_step", p.micro_step);
  visit("epoch", p.epoch);
  visit("epoch_batch", p.epoch_batch);
  visit("num_tokens", p.tokens);
  visit("skipped_steps", p.skipped_steps);
  visit("skipped_in_a_row", p.skipped_in_a_row);
  visit("eval_due", p.eval_due);
  visit("sampled_step", p.sampled_step);
  visit("loss_sum", p.loss_sum);
  visit("loss_sum_steps", p.loss_steps);
  visit("loss_mean", p.losses.mean);
  visit("loss_deviation", p.losses.deviation);
  visit("loss_count", p.losses.count);
  visit("loss_newest", p.losses.newest);
  visit("loss_start", p.start.mean);
  visit("loss_start_count", p.start.count);
  visit("best_metric", p.best.metric);
  visit("best_global_step", p.best.step);
  visit("evals_since_best", p.best.since_best);
}

}  // namespace

bool StopsEarly(const TrainOptions& options, const TrainPosition& at) {
  return options.early_stopping_patience > 0 &&
         at.best.since_best >= options.early_stopping_patience;
}

Json PositionToJson(const TrainPosition& position) {
  Json state = Json::object();
  ForEachMember(position, [&](const char* key, const auto& value) { state[key] = value; });
  return state;
}

namespace {

// Refuses values that no run can have written.
void CheckPosition(const TrainPosition& at, const std::string& where) {
  // Half of the range, so that sums of two counters cannot overflow.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  const auto within = [&](const char* key, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
    if (value >= low && value <= high) return;
    ThrowInvalidInput("{}: key '{}': expected {} to {}, found {}; the checkpoint is damaged", where,
                      key, low, high, value);
  };
  // Each bound follows from Advance: a step and an epoch have at least one micro-batch, and each
  // loss one step.
  within("global_step", at.step, 0, kMost);
  within("micro_step", at.micro_step, at.step, kMost);
  within("epoch", at.epoch, 0, at.micro_step);
  within("epoch_batch", at.epoch_batch, 0, at.micro_step);
  within("num_tokens", at.tokens, 0, kMost);
  within("skipped_steps", at.skipped_steps, 0, at.step);
  within("skipped_in_a_row", at.skipped_in_a_row, 0, at.skipped_steps);
  within("sampled_step", at.sampled_step, -1, at.step);
  within("loss_sum_steps", at.loss_steps, 0, at.step);
  within("loss_count", at.losses.count, 0, at.step);
  within("number of loss_newest", std::ssize(at.losses.newest), 0,
         std::min(at.losses.count, LossSpikes::kNewest));
  within("loss_start_count", at.start.count, 0, at.losses.count);
  within("best_global_step", at.best.step, -1, at.step);
  within("evals_since_best", at.best.since_best, 0, kMost);
  const auto finite = [&](const char* key, double value) {
    if (std::isfinite(value)) return;
    ThrowInvalidInput("{}: key '{}': expected a finite number; the checkpoint is damaged", where,
                      key);
  };
  finite("loss_sum", at.loss_sum);
  finite("loss_mean", at.losses.mean);
  finite("loss_deviation", at.losses.deviation);
  if (at.losses.deviation < 0) {
    ThrowInvalidInput(
        "{}: key 'loss_deviation': expected 0 or more, found {}; the checkpoint is "
        "damaged",
        where, at.losses.deviation);
  }
  for (const double loss : at.losses.newest) finite("loss_newest", loss);
  finite("loss_start", at.start.mean);
  finite("best_metric", at.best.metric);
}

}  // namespace

TrainPosition PositionFromJson(const Json& state, const std::string& where) {
  TrainPosition position;
  ForEachMember(position, [&]<typename T>(std::string_view key, T& value) {
    // Checkpoints of earlier versions lack these, which the resumed run measures.
    const bool optional =
        key.starts_with("loss_start") || key.starts_with("loss_sum") || key == "loss_newest";
    if (!optional || state.contains(key)) value = JsonGet<T>(state, key, where);
  });
  CheckPosition(position, where);
  return position;
}

}  // namespace qlora
