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

// The samples [begin, end) of a pass.
struct PassSamples {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t supervised = 0;  // tokens
};

// The sums of a pass; empty on ranks that have not computed it.
using PassSums = std::vector<double>;

// Whole samples are collected until the next one would exceed `rows`. Each pass has about the same
// size, whatever the lengths are, and the samples of a pass are separate sequences: grouping does
// not change their losses.
std::vector<PassSamples> GroupSamples(const SampleList& samples, std::int64_t rows) {
  std::vector<PassSamples> passes;
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < samples.size; ++i) {
    if (passes.empty() || filled + samples.length(i) > rows) {
      passes.push_back({i, i, 0});
      filled = 0;
    }
    filled += samples.length(i);
    passes.back().end = i + 1;
    passes.back().supervised += samples.supervised(i);
  }
  return passes;
}

// The replica that computes a pass, in whose last stage the result is.
int ReplicaOf(const RankPlace& place, std::int64_t pass) {
  return static_cast<int>(pass % place.split.replicas);
}
int OwnerOf(const RankPlace& place, std::int64_t pass) {
  return place.RankOf(ReplicaOf(place, pass), place.stages - 1);
}

// Gives every rank the values of all. mine: of this rank. counts: how many each rank has.
template <typename T>
std::vector<std::vector<T>> GatherValues(Communicator& communicator, std::span<const T> mine,
                                         std::span<const std::int64_t> counts) {
  const std::vector<Communicator::Bytes> to_each(counts.size(), std::as_bytes(mine));
  std::vector<std::vector<T>> all;
  for (const std::int64_t count : counts) all.emplace_back(count);
  std::vector<Communicator::MutableBytes> from_each;
  for (std::vector<T>& values : all) from_each.push_back(std::as_writable_bytes(std::span(values)));
  communicator.Exchange(to_each, from_each);
  return all;
}

// Puts the results of all ranks in their places, each of which its owner has filled.
void SharePasses(Communicator& communicator, const RankPlace& place, std::int64_t width,
                 std::vector<PassSums>& passes) {
  std::vector<double> mine;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(place.ranks()));
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {
    counts[OwnerOf(place, p)] += width;
    if (OwnerOf(place, p) == place.rank)
      mine.insert(mine.end(), passes[p].begin(), passes[p].end());
  }
  const auto all = GatherValues<double>(communicator, mine, counts);
  std::fill(counts.begin(), counts.end(), 0);
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {
    const int owner = OwnerOf(place, p);
    const auto begin = all[owner].begin() + counts[owner];
    passes[p].assign(begin, begin + width);
    counts[owner] += width;
  }
}

// The values of rows in the order of passes. mine: of the passes of this rank. of_pass: how many
// each pass has.
template <typename T>
void ShareTokens(Communicator& communicator, const RankPlace& place,
                 std::span<const std::int64_t> of_pass, std::vector<T>& mine) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(place.ranks()));
  for (std::int64_t p = 0; p < std::ssize(of_pass); ++p) {
    counts[OwnerOf(place, p)] += of_pass[p];
  }
  const auto all = GatherValues<T>(communicator, mine, counts);
  std::fill(counts.begin(), counts.end(), 0);
  mine.clear();
  for (std::int64_t p = 0; p < std::ssize(of_pass); ++p) {
    const int owner = OwnerOf(place, p);
    const auto begin = all[owner].begin() + counts[owner];
    mine.insert(mine.end(), begin, begin + of_pass[p]);
    counts[owner] += of_pass[p];
  }
}

}  // namespace

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

std::optional<DatasetSums> EvaluateDataset(Communicator& communicator, const RankPlace& place,
                                           const Decoder& decoder, const LoraAdapter* adapter,
                                           const Objective& objective, const SampleList& list,
                                           bool per_token, Arena& memory,
                                           const EvalProgress& progress) {
  const Stopwatch watch;
  const std::vector<PassSamples> groups = GroupSamples(list, EvalRows(list.largest));
  EvalMemory activations_of(decoder, AdaptersOf(adapter), memory);
  DatasetSums result;
  for (const PassSamples& group : groups) result.totals.supervised += group.supervised;
  for (std::int64_t i = 0; list.chosen && i < list.size; ++i)
    result.totals.chosen += list.chosen(i);
  result.totals.samples = list.size;
  result.totals.kl = list.kl;
  // The sums of a pass, and the number of the values that it appended to logprobs.
  const std::int64_t width = objective.sums() + 1;
  std::vector<PassSums> passes(groups.size());
  bool stopped = false;
  for (std::int64_t p = 0; p < std::ssize(groups); ++p) {
    if (ReplicaOf(place, p) != place.replica()) continue;
    stopped = stopped || (progress && !progress(groups[p].begin, list.size));
    // Stages wait for one another, and end together.
    if (stopped && place.stages == 1) break;
    std::vector<Sample> samples;
    for (std::int64_t i = groups[p].begin; i < groups[p].end; ++i) {
      samples.push_back(list.get(i));
    }
    Batch batch = MakeBatch(samples);
    if (list.reference) {
      SetReference([&](std::int64_t e) { return list.reference(groups[p].begin + e); }, batch);
    }
    Activations& activations = activations_of.ForRows(batch.rows(), batch.unfolded_rows());
    const PassInputs inputs =
        PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
    ForwardStage(communicator, place, decoder, inputs, activations);
    if (!place.is_last_stage()) continue;
    passes[p].resize(width);
    const std::int64_t before = std::ssize(result.logprobs);
    objective.Run({result.totals, decoder, batch, inputs, activations,
                   per_token ? &result.logprobs : nullptr},
                  nullptr, std::span(passes[p]).first(objective.sums()));
    passes[p].back() = static_cast<double>(std::ssize(result.logprobs) - before);
    // In the order of rows, as Loss appends the log-probabilities.
    for (const std::int32_t target : batch.targets) {
      if (per_token && target != kIgnoreLabel) result.token_ids.push_back(target);
    }
  }
  if (AnyRank(communicator, stopped)) return {};
  if (place.ranks() > 1) SharePasses(communicator, place, width, passes);
  if (place.ranks() > 1 && per_token) {
    std::vector<std::int64_t> values;
    std::vector<std::int64_t> tokens;
    for (const PassSums& pass : passes) values.push_back(static_cast<std::int64_t>(pass.back()));
    for (const PassSamples& group : groups) tokens.push_back(group.supervised);
    ShareTokens(communicator, place, values, result.logprobs);
    ShareTokens(communicator, place, tokens, result.token_ids);
  }
  result.sums.resize(objective.sums());
  for (const PassSums& pass : passes) {  // in this order on any number of ranks
    for (std::int64_t i = 0; i < objective.sums(); ++i) result.sums[i] += pass[i];
  }
  result.seconds = watch.seconds();
  return result;
}

}  // namespace qlora
