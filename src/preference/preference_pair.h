// Encoded answers as samples of preferences.
#ifndef QLORA_PREFERENCE_PREFERENCE_PAIR_H_
#define QLORA_PREFERENCE_PREFERENCE_PAIR_H_

#include <cstdint>

#include "base/batch.h"

namespace qlora {

// How two answers become a sample.
struct PairLayout {
  bool implicit = false;     // both train whole texts: what they share is their prompt
  bool share_prefix = true;  // compute the common prompt once
  // The chosen one trains its prompt as well, the tokens before its answer; nothing is shared.
  bool trains_text = false;
};

// A pair as two sequences behind their common prompt, of which each sequence repeats the last
// token, so that every row has one target:
//
//   ids        x x | x y y y | x z z       x x x the prompt
//   labels     - - | - y y y | - z z
//
// Returns a sample without tokens where an answer has none that is trained. Errors: InvalidInput,
// without a place, for texts of an implicit prompt that share nothing, or of which one is the
// beginning of the other.
Sample JoinPair(Sample chosen, Sample rejected, const PairLayout& layout);

// What a cut leaves of the answers of a pair.
enum class PairCut : std::uint8_t {
  kDifferent,
  kEqual,  // nothing in which they differ
  kEmpty,  // no token of one of them
};
// Removes tokens from the ends of both answers, until the longest sequence has `length` tokens.
PairCut CutPair(Sample& chosen, Sample& rejected, std::int64_t length);

// The first trained token of a sequence; its length without one.
std::int64_t FirstTrained(const Sample& sequence);

// The sample of the prompt of `row` and the answer of `other`, both of one sequence.
Sample Mismatched(const Sample& row, const Sample& other);

}  // namespace qlora

#endif  // QLORA_PREFERENCE_PREFERENCE_PAIR_H_
