// The pre-tokenizer step that cuts text at the matches of a pattern: Split, Digits, Punctuation and
// the regular expression of ByteLevel.
#ifndef QLORA_TOKENIZER_SPLIT_STEP_H_
#define QLORA_TOKENIZER_SPLIT_STEP_H_

#include <memory>

#include "tokenizer/json_value.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/split_pattern.h"

namespace qlora {

// The treatment of the matches of a pattern. "the-final--countdown" cut at "-":
enum class SplitBehavior {
  kRemoved,             // the final countdown
  kIsolated,            // the - final - - countdown
  kMergedWithPrevious,  // the- final- - countdown
  kMergedWithNext,      // the -final - -countdown
  kContiguous,          // the - final -- countdown
};
// Errors: InvalidInput when the name is not among the five.
SplitBehavior ParseSplitBehavior(const JsonValue& name);

// invert: what is between the matches counts as matches.
std::unique_ptr<const PreTokenizer::Step> MakeSplitStep(std::unique_ptr<SplitPattern> pattern,
                                                        SplitBehavior behavior,
                                                        bool invert = false);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_STEP_H_
