// How likely a model finds the tokens of a prompt.
#ifndef QLORA_SERVE_ENGINE_PROMPT_LOGPROBS_H_
#define QLORA_SERVE_ENGINE_PROMPT_LOGPROBS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "pass/decoder.h"
#include "serve/generation_service.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Runs one pass over the prompt, in memory of its own. Returns a token for each of `ids`, with so
// many of the likeliest ones beside it; the first token, of which nothing is known, has the
// log-probability 0. adapter: or null. Errors: OutOfMemory; Runtime for what is not finite.
std::vector<AnswerToken> PromptLogprobs(const Decoder& decoder, const LoraAdapter* adapter,
                                        std::span<const std::int32_t> ids, std::int64_t top,
                                        const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_PROMPT_LOGPROBS_H_
