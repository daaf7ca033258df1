// How likely a model finds given continuations of given contexts.
#ifndef QLORA_INFERENCE_CONTINUATION_SCORES_H_
#define QLORA_INFERENCE_CONTINUATION_SCORES_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/batch.h"
#include "pass/decoder.h"
#include "qlora/model.h"

namespace qlora {

// Continuations of one context as the rows of a pass: the context is computed once.
struct ScoreRows {
  Sample sample;                     // without the last token of each continuation
  std::vector<std::int64_t> ends;    // the last row of each continuation
  std::vector<std::int32_t> lasts;   // the last token of each, which that row predicts
  std::vector<std::int64_t> counts;  // tokens of each continuation
};

// Requests as rows: one for each request whose rows fit into `limit`, otherwise one for each
// continuation, which reads the last `limit` tokens before its last. Errors: InvalidInput for an
// empty context or continuation, or a token beyond vocab_size.
std::vector<ScoreRows> LayOutScores(std::span<const ScoreRequest> requests, std::int64_t limit,
                                    std::int64_t vocab_size);

// Runs the passes. The results of all continuations of all requests, in their order.
using ScoreProgress = std::function<void(std::int64_t done, std::int64_t total)>;
std::vector<ContinuationScore> RunScores(const Decoder& decoder, const LoraAdapter* adapter,
                                         std::span<const ScoreRows> rows,
                                         const ScoreProgress& progress);

}  // namespace qlora

#endif  // QLORA_INFERENCE_CONTINUATION_SCORES_H_
