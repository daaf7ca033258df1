#include "inference/dataset_evaluation.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/stopwatch.h"
#include "dist/together.h"
#include "objective/answer_logprobs.h"
#include "objective/stage_forward.h"
#include "pass/eval_memory.h"

namespace qlora {

namespace {

// The replica that computes a pass, in whose last stage the result is.
int ReplicaOf(const RankPlace& place, std::int64_t pass) {
  return static_cast<int>(pass % place.split.replicas);
}
int OwnerOf(const RankPlace& place, std::int64_t pass) {
  return place.RankOf(ReplicaOf(place, pass), place.stages - 1);
}

// The values of all passes in their order, on every rank. values: of the passes of this rank.
// of_pass: how many each pass has.
template <typename T>
void ShareValues(Communicator& communicator, const RankPlace& place,
                 std::span<const std::int64_t> of_pass, std::vector<T>& values) {
  std::vector<std::vector<T>> all(static_cast<std::size_t>(place.ranks()));
  for (std::int64_t p = 0; p < std::ssize(of_pass); ++p) {
    std::vector<T>& of_owner = all[OwnerOf(place, p)];
    of_owner.resize(of_owner.size() + static_cast<std::size_t>(of_pass[p]));
  }
  const std::vector<Communicator::Bytes> to_each(all.size(), std::as_bytes(std::span(values)));
  std::vector<Communicator::MutableBytes> from_each;
  for (std::vector<T>& of_rank : all) {
    from_each.push_back(std::as_writable_bytes(std::span(of_rank)));
  }
  communicator.Exchange(to_each, from_each);
  values.clear();
  std::vector<std::int64_t> taken(all.size());
  for (std::int64_t p = 0; p < std::ssize(of_pass); ++p) {
    const int owner = OwnerOf(place, p);
    const auto begin = all[owner].begin() + taken[owner];
    values.insert(values.end(), begin, begin + of_pass[p]);
    taken[owner] += of_pass[p];
  }
}

}  // namespace

std::vector<PassSamples> GroupSamples(std::int64_t size, std::int64_t rows,
                                      const std::function<std::int64_t(std::int64_t)>& length) {
  std::vector<PassSamples> passes;
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (passes.empty() || filled + length(i) > rows) {
      passes.push_back({i, i});
      filled = 0;
    }
    filled += length(i);
    passes.back().end = i + 1;
  }
  return passes;
}

void DatasetSums::Add(const DatasetSums& part) {
  sums.resize(part.sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part.sums[i];
  totals.supervised += part.totals.supervised;
  totals.rows += part.totals.rows;
  totals.chosen += part.totals.chosen;
  totals.samples += part.totals.samples;
  totals.kl = part.totals.kl;
  seconds += part.seconds;
  logprobs.insert(logprobs.end(), part.logprobs.begin(), part.logprobs.end());
  token_ids.insert(token_ids.end(), part.token_ids.begin(), part.token_ids.end());
}

SampleList ListOf(const Dataset& dataset) {
  return {.size = dataset.size(),
          .largest = dataset.report().largest,
          .length = [&dataset](std::int64_t i) { return dataset.length(i); },
          .supervised = [&dataset](std::int64_t i) { return dataset.supervised(i); },
          .get = [&dataset](std::int64_t i) { return dataset.Get(i); },
          .chosen = [&dataset](std::int64_t i) { return dataset.chosen(i); }};
}

std::optional<DatasetSums> EvaluateDataset(const MeasuredModel& model, const Objective& objective,
                                           const SampleList& list, bool per_token) {
  const auto& [communicator, place, decoder, adapter, memory, progress] = model;
  const Stopwatch watch;
  const std::vector<PassSamples> passes =
      GroupSamples(list.size, EvalRows(list.largest), list.length);
  EvalMemory activations_of(decoder, AdaptersOf(adapter), memory);
  DatasetSums result;
  std::vector<std::int64_t> tokens;  // supervised ones of each pass
  for (const PassSamples& pass : passes) {
    tokens.push_back(0);
    for (std::int64_t i = pass.begin; i < pass.end; ++i) tokens.back() += list.supervised(i);
    result.totals.supervised += tokens.back();
  }
  for (std::int64_t i = 0; list.chosen && i < list.size; ++i)
    result.totals.chosen += list.chosen(i);
  result.totals.samples = list.size;
  result.totals.kl = list.kl;
  // Of each pass its sums, and the number of the values that it appended to logprobs.
  const std::int64_t width = objective.sums() + 1;
  std::vector<double> sums;
  bool stopped = false;
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {
    if (ReplicaOf(place, p) != place.replica()) continue;
    stopped = stopped || (progress && !progress(passes[p].begin, list.size));
    // Stages wait for one another, and end together.
    if (stopped && place.stages == 1) break;
    std::vector<Sample> samples;
    for (std::int64_t i = passes[p].begin; i < passes[p].end; ++i) {
      samples.push_back(list.get(i));
    }
    Batch batch = MakeBatch(samples);
    if (list.reference) {
      SetReference([&](std::int64_t e) { return list.reference(passes[p].begin + e); }, batch);
    }
    Activations& activations = activations_of.ForRows(batch.rows(), batch.unfolded_rows());
    const PassInputs inputs =
        PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
    ForwardStage(communicator, place, decoder, inputs, activations);
    if (!place.is_last_stage()) continue;
    sums.resize(sums.size() + static_cast<std::size_t>(width));
    const std::span<double> of_pass = std::span(sums).last(static_cast<std::size_t>(width));
    const std::int64_t before = std::ssize(result.logprobs);
    objective.Run({result.totals, decoder, batch, inputs, activations,
                   per_token ? &result.logprobs : nullptr},
                  nullptr, of_pass.first(objective.sums()));
    of_pass.back() = static_cast<double>(std::ssize(result.logprobs) - before);
    // In the order of rows, as Loss appends the log-probabilities.
    for (const std::int32_t target : batch.targets) {
      if (per_token && target != kIgnoreLabel) result.token_ids.push_back(target);
    }
  }
  if (AnyRank(communicator, stopped)) return {};
  if (place.ranks() > 1) {
    ShareValues(communicator, place, std::vector(passes.size(), width), sums);
  }
  if (place.ranks() > 1 && per_token) {
    std::vector<std::int64_t> values;
    for (std::int64_t p = 1; p <= std::ssize(passes); ++p) {
      values.push_back(static_cast<std::int64_t>(sums[p * width - 1]));
    }
    ShareValues(communicator, place, values, result.logprobs);
    ShareValues(communicator, place, tokens, result.token_ids);
  }
  result.sums.resize(objective.sums());
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {  // in this order on any number of ranks
    for (std::int64_t i = 0; i < objective.sums(); ++i) result.sums[i] += sums[p * width + i];
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace qlora
