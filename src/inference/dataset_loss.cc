#include "inference/dataset_loss.h"

#include <algorithm>
#include <cmath>

#include "base/stopwatch.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"

namespace qlora {

std::int64_t EvalRows(std::int64_t longest) { return std::max<std::int64_t>(1024, longest); }

std::optional<EvalResult> EvaluateDataset(const Decoder& decoder, const LoraAdapter* adapter,
                                          const Dataset& dataset, bool per_token,
                                          PassMemory& memory, const EvalProgress& progress) {
  // Whole samples are collected until the next one would exceed `rows`, then a pass runs over them.
  // Each pass has about the same size, whatever the lengths are, and the samples of a pass are
  // separate sequences: grouping does not change their losses.
  const Stopwatch watch;
  const std::int64_t rows = EvalRows(dataset.report().longest);
  EvalMemory passes(decoder, AdaptersOf(adapter), memory);

  EvalResult result;
  LossSum sum;
  std::vector<Sample> group;
  std::int64_t group_rows = 0;
  const auto flush = [&] {
    if (group.empty()) return;
    const Batch batch = MakeBatch(group);
    Activations& activations = passes.ForRows(batch.rows());
    const PassInputs inputs =
        PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
    Forward(decoder, inputs, activations);
    const LossSum batch_sum =
        Loss(decoder, inputs, activations, per_token ? &result.logprobs : nullptr);
    sum.loss += batch_sum.loss;
    sum.hits += batch_sum.hits;
    // In the order of rows, as Loss appends the log-probabilities.
    for (const std::int32_t target : batch.targets) {
      if (per_token && target != kIgnoreLabel) result.token_ids.push_back(target);
    }
    result.tokens += batch.supervised();
    result.sequences += batch.sequences();
    group.clear();
    group_rows = 0;
  };
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    Sample sample = dataset.Get(i);
    const std::int64_t length = std::ssize(sample.ids);
    if (group_rows + length > rows) {
      // Sample i is not in the group yet, and the samples of the group are not computed yet.
      if (progress && !progress(i - std::ssize(group), dataset.size())) return {};
      flush();
    }
    group_rows += length;
    group.push_back(std::move(sample));
  }
  flush();

  result.loss = sum.loss / static_cast<double>(result.tokens);
  result.token_accuracy = static_cast<double>(sum.hits) / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace qlora
