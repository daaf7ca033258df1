// Prompts with answers to other prompts, by which training on labels estimates how far the model is
// from its reference.
#ifndef QLORA_DATA_MISMATCHED_ROWS_H_
#define QLORA_DATA_MISMATCHED_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/batch.h"
#include "data/dataset.h"

namespace qlora {

// The prompt of one sample with the answer of another.
struct MismatchedRow {
  std::uint32_t prompt = 0;
  std::uint32_t answer = 0;

  bool operator==(const MismatchedRow&) const = default;
};

// For each of these samples, in their order, its prompt with the answer of the nearest sample
// before it that has another prompt, the last one before the first. Errors: InvalidInput when all
// have one prompt.
std::vector<MismatchedRow> MismatchedRows(const Dataset& dataset,
                                          std::span<const std::uint32_t> samples);

// What a run or an evaluation reads.
struct VisitedSamples {
  std::vector<std::uint32_t> samples;     // ascending, each once
  std::vector<MismatchedRow> mismatched;  // in the order of their first visits, each once
};
// mismatches: the objective needs them. Errors: as MismatchedRows.
VisitedSamples VisitedByEvaluation(const Dataset& dataset, bool mismatches);

// Reads such a row, of max_length tokens at most.
Sample ReadMismatched(const Dataset& dataset, const MismatchedRow& row, std::int64_t max_length);
// Depends on all tokens of both samples, as Dataset::key.
std::uint64_t KeyOf(const Dataset& dataset, const MismatchedRow& row);

// Tokens that no such row exceeds.
std::int64_t LongestMismatched(const Dataset& dataset, std::int64_t max_length);

}  // namespace qlora

#endif  // QLORA_DATA_MISMATCHED_ROWS_H_
