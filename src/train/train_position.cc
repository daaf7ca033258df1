#include "train/train_position.h"

#include "io/json.h"

namespace qlora {

void TrainPosition::Advance(const StepBatch& batch, const StepResult& result,
                            const DataCursor& next) {
  ++step;
  micro_step = batch.first_micro_batch + std::ssize(batch.micro_batches);
  epoch = next.epoch;
  epoch_batch = next.position;
  tokens += batch.supervised;
  skipped_in_a_row = result.applied ? 0 : skipped_in_a_row + 1;
  skipped_steps += result.applied ? 0 : 1;
  loss_spike = result.applied && losses.Add(result.loss);
}

namespace {

// visit(key, member) for everything that a checkpoint stores.
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
  visit("loss_mean", p.losses.mean);
  visit("loss_deviation", p.losses.deviation);
  visit("loss_count", p.losses.count);
  visit("best_metric", p.best.metric);
  visit("best_global_step", p.best.step);
  visit("evals_since_best", p.best.since_best);
}

}  // namespace

Json PositionToJson(const TrainPosition& position) {
  Json state = Json::object();
  ForEachMember(position, [&](const char* key, const auto& value) { state[key] = value; });
  return state;
}

TrainPosition PositionFromJson(const Json& state, const std::string& where) {
  TrainPosition position;
  ForEachMember(position, [&]<typename T>(const char* key, T& value) {
    value = JsonGet<T>(state, key, where);
  });
  return position;
}

}  // namespace qlora
