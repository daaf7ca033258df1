// The texts of an engine's tokens.
#ifndef QLORA_INFERENCE_TEXT_ANSWERS_H_
#define QLORA_INFERENCE_TEXT_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "inference/engine.h"
#include "qlora/model.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Receives text of answer number i that is certain: whole characters, and no part of a text that
// ends it. May return false to end the answer.
using OnText = std::function<bool(std::int64_t i, std::string_view piece)>;

// Runs requests until all are done. Returns their answers; the end of one that has max_new_tokens
// is StopReason::kMaxNewTokens. Their ends have no text, and options.stop ends a text, too. Errors:
// Runtime for logits that are NaN.
std::vector<GenerateReport> WriteAnswers(Engine& engine, std::vector<EngineRequest> requests,
                                         const Tokenizer& tokenizer, const OnText& on_text = {});

}  // namespace qlora

#endif  // QLORA_INFERENCE_TEXT_ANSWERS_H_
