// What a request changes in the logits of its next token, before the sampler sees them.
#ifndef QLORA_SERVE_ENGINE_LOGIT_EDITS_H_
#define QLORA_SERVE_ENGINE_LOGIT_EDITS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "serve/generation_service.h"

namespace qlora {

using LogitEdit =
    std::function<void(std::span<const std::int32_t> answer, std::span<float> logits)>;

// In this order: logit_bias; the repetition penalty, as Sampler applies it, of which the request is
// relieved; presence and frequency penalties, which count the answer alone; no end of the answer
// before min_tokens, or at all with ignore_eos. ends: tokens that end it. Null where nothing is to
// be changed.
LogitEdit TakeLogitEdits(GenerationRequest& request, const std::vector<std::int32_t>& ends);

}  // namespace qlora

#endif  // QLORA_SERVE_ENGINE_LOGIT_EDITS_H_
