// The prompts of sample_prompts as tokens, and the memory that continuing them takes.
#ifndef QLORA_PLAN_SAMPLE_PROMPTS_H_
#define QLORA_PLAN_SAMPLE_PROMPTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/ops.h"
#include "config/config.h"
#include "data/data_options.h"
#include "prompt/chat_template.h"
#include "prompt/prompt_layout.h"
#include "qlora/train_options.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The prompts as tokens, and the sizes that continuing them needs.
struct SamplePrompts {
  std::vector<std::vector<std::int32_t>> ids;  // tokens of each prompt, in its layout
  std::vector<std::int32_t> ends;              // tokens that end an answer
  std::int64_t rows = 0;                       // of the largest pass
  std::int64_t capacity = 0;  // positions of the longest prompt with its continuation

  // Prompts that are continued at the same time: as many as have keys and values in 64 MiB.
  std::int64_t Slots(const DecoderConfig& config, const Precision& precision) const;
  // Bytes of the keys and values of their prompts and continuations.
  std::size_t CacheBytes(const DecoderConfig& config, const Precision& precision) const;
};

// Prompts in `layout`. Errors: InvalidInput for a prompt without tokens, one that the
// layout has no place for, or one that leaves no room for a continuation.
SamplePrompts EncodePrompts(const TrainOptions& options, const PromptLayout& layout,
                            const Tokenizer& tokenizer, const ChatTemplate* chat,
                            const DataLimits& limits);

}  // namespace qlora

#endif  // QLORA_PLAN_SAMPLE_PROMPTS_H_
