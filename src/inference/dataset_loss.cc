#include "inference/dataset_loss.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/stopwatch.h"
#include "dist/together.h"
#include "pass/eval_memory.h"
#include "pass/loss.h"

namespace qlora {

std::int64_t EvalRows(std::int64_t longest) { return std::max<std::int64_t>(1024, longest); }

namespace {

// The samples [begin, end) of a pass.
struct PassSamples {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct PassResult {
  double loss = 0;
  std::int64_t hits = 0;
  std::int64_t tokens = 0;
};

// Whole samples are collected until the next one would exceed `rows`. Each pass has about the same
// size, whatever the lengths are, and the samples of a pass are separate sequences: grouping does
// not change their losses.
std::vector<PassSamples> GroupSamples(const Dataset& dataset, std::int64_t rows) {
  std::vector<PassSamples> passes;
  std::int64_t filled = 0;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    if (passes.empty() || filled + dataset.length(i) > rows) {
      passes.push_back({i, i});
      filled = 0;
    }
    filled += dataset.length(i);
    passes.back().end = i + 1;
  }
  return passes;
}

// The passes of a rank: every size-th.
template <typename Visit>
void ForPassesOf(int rank, const Communicator& communicator, std::int64_t passes,
                 const Visit& visit) {
  for (std::int64_t p = rank; p < passes; p += communicator.size()) visit(p);
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

// Puts the results of all ranks in their places, each of which one rank has filled.
void SharePasses(Communicator& communicator, std::vector<PassResult>& passes) {
  const std::int64_t count = std::ssize(passes);
  std::vector<PassResult> mine;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(communicator.size()));
  ForPassesOf(communicator.rank(), communicator, count,
              [&](std::int64_t p) { mine.push_back(passes[p]); });
  for (int rank = 0; rank < communicator.size(); ++rank) {
    ForPassesOf(rank, communicator, count, [&](std::int64_t) { ++counts[rank]; });
  }
  const auto all = GatherValues<PassResult>(communicator, mine, counts);
  for (std::int64_t p = 0; p < count; ++p) {
    passes[p] = all[p % communicator.size()][p / communicator.size()];
  }
}

// The values of supervised tokens in the order of passes. mine: of the passes of this rank.
template <typename T>
void ShareTokens(Communicator& communicator, std::span<const PassResult> passes,
                 std::vector<T>& mine) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(communicator.size()));
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {
    counts[p % communicator.size()] += passes[p].tokens;
  }
  const auto all = GatherValues<T>(communicator, mine, counts);
  std::vector<std::int64_t> used(counts.size());
  mine.clear();
  for (std::int64_t p = 0; p < std::ssize(passes); ++p) {
    const auto rank = p % communicator.size();
    const auto begin = all[rank].begin() + used[rank];
    mine.insert(mine.end(), begin, begin + passes[p].tokens);
    used[rank] += passes[p].tokens;
  }
}

}  // namespace

std::optional<EvalResult> EvaluateDataset(Communicator& communicator, const Decoder& decoder,
                                          const LoraAdapter* adapter, const Dataset& dataset,
                                          bool per_token, PassMemory& memory,
                                          const EvalProgress& progress) {
  const Stopwatch watch;
  const std::vector<PassSamples> groups = GroupSamples(dataset, EvalRows(dataset.report().longest));
  EvalMemory activations_of(decoder, AdaptersOf(adapter), memory);
  EvalResult result;
  std::vector<PassResult> passes(groups.size());
  bool stopped = false;
  ForPassesOf(communicator.rank(), communicator, std::ssize(groups), [&](std::int64_t p) {
    stopped = stopped || (progress && !progress(groups[p].begin, dataset.size()));
    if (stopped) return;
    std::vector<Sample> samples;
    for (std::int64_t i = groups[p].begin; i < groups[p].end; ++i) {
      samples.push_back(dataset.Get(i));
    }
    const Batch batch = MakeBatch(samples);
    Activations& activations = activations_of.ForRows(batch.rows());
    const PassInputs inputs =
        PrepareInputs(decoder, batch, {ForAllRows(adapter, batch.rows())}, activations);
    Forward(decoder, inputs, activations);
    const LossSum sum = Loss(decoder, inputs, activations, per_token ? &result.logprobs : nullptr);
    passes[p] = {sum.loss, sum.hits, batch.supervised()};
    // In the order of rows, as Loss appends the log-probabilities.
    for (const std::int32_t target : batch.targets) {
      if (per_token && target != kIgnoreLabel) result.token_ids.push_back(target);
    }
  });
  if (AnyRank(communicator, stopped)) return {};
  if (!communicator.is_alone()) SharePasses(communicator, passes);
  if (!communicator.is_alone() && per_token) {
    ShareTokens(communicator, passes, result.logprobs);
    ShareTokens(communicator, passes, result.token_ids);
  }
  PassResult sum;
  for (const PassResult& pass : passes) {  // in this order on any number of ranks
    sum.loss += pass.loss;
    sum.hits += pass.hits;
    sum.tokens += pass.tokens;
  }
  result.tokens = sum.tokens;
  result.sequences = dataset.size();
  result.loss = sum.loss / static_cast<double>(result.tokens);
  result.token_accuracy = static_cast<double>(sum.hits) / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace qlora
