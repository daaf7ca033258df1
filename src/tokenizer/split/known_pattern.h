// The split expressions of well-known tokenizers, matched by hand.
#ifndef QLORA_TOKENIZER_SPLIT_KNOWN_PATTERN_H_
#define QLORA_TOKENIZER_SPLIT_KNOWN_PATTERN_H_

#include <memory>
#include <string_view>

#include "tokenizer/split/split_pattern.h"

namespace qlora {

// The matcher written by hand for a known expression, or null.
std::unique_ptr<SplitPattern> MakeKnownPattern(std::string_view regex);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_KNOWN_PATTERN_H_
