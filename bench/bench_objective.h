// What a measured step trains for, with a batch of random tokens for it.
#ifndef QLORA_BENCH_BENCH_OBJECTIVE_H_
#define QLORA_BENCH_BENCH_OBJECTIVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/batch.h"
#include "config/config.h"
#include "objective/objective.h"

namespace qlora::bench {

struct BenchObjective {
  std::string name;
  std::shared_ptr<const Objective> objective;
  Batch batch;
  WindowTotals totals;
};

// The names that BenchObjectiveOf takes: supervised, preference, decision.
std::vector<std::string> ObjectiveNames();

// Samples of `length` tokens, the same number for each objective:
//   supervised  all tokens are trained on
//   preference  a pair whose prompt is as long as both answers, for sigmoid
//   decision    a state of half of the tokens with three questions of four options
// share_prefix: prompt and state are computed once; otherwise each answer and question has a copy.
// Errors: InvalidInput for an unknown name and for samples too short to have these parts.
BenchObjective BenchObjectiveOf(const std::string& name, const DecoderConfig& config,
                                std::int64_t samples, std::int64_t length, bool share_prefix);

// The length of a sequence in which each token sees as many keys, on average, as in the batch.
std::int64_t MeanLength(const Batch& batch);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_OBJECTIVE_H_
