#include "plan/sample_prompts.h"

#include <algorithm>

#include "base/check.h"
#include "inference/engine.h"
#include "pass/state_pool.h"
#include "prompt/prompt_renderer.h"

namespace qlora {

// Encoded before weights are loaded: a prompt that cannot be answered is an error of the options,
// and the longest prompt decides the size of the cache.
SamplePrompts EncodePrompts(const TrainOptions& options, const PromptLayout& layout,
                            const Tokenizer& tokenizer, const ChatTemplate* chat,
                            const DataLimits& limits) {
  if (options.sample_prompts.empty()) return {};
  const PromptRenderer renderer(layout, tokenizer, chat);
  SamplePrompts prompts;
  // A conversation ends an answer with the end of the turn, which need not be an end of the text.
  prompts.ends = tokenizer.eos_ids();
  if (layout.kind == PromptLayout::Kind::kChat) {
    if (const auto end = chat->turn_end()) prompts.ends.push_back(*end);
  }
  const std::int64_t new_tokens = options.sample_max_new_tokens;
  for (const std::string& text : options.sample_prompts) {
    const PromptText prompt = options.sample_raw ? PromptText{text} : renderer.Prompt(text, "");
    const std::vector<std::int32_t> ids = EncodePrompt(tokenizer, prompt);
    const std::int64_t tokens = std::ssize(ids);
    if (tokens == 0) ThrowInvalidInput("sample_prompts: '{}' has no tokens", text);
    if (tokens + new_tokens > limits.max_position_embeddings) {
      ThrowInvalidInput(
          "sample_prompts: '{}' has {} tokens, and with sample_max_new_tokens {} that is more than "
          "the {} positions of the model",
          text, tokens, new_tokens, limits.max_position_embeddings);
    }
    for (const std::int32_t id : ids) {
      if (id < limits.vocab_size) continue;
      ThrowInvalidInput("sample_prompts: token id {} ('{}') exceeds the model's vocabulary of {}",
                        id, tokenizer.TokenText(id), limits.vocab_size);
    }
    prompts.rows = std::max(prompts.rows, std::min(tokens, kMostPromptRows));
    prompts.capacity = std::max(prompts.capacity, tokens + new_tokens);
    prompts.ids.push_back(ids);
  }
  return prompts;
}

std::int64_t SamplePrompts::Slots(const DecoderConfig& config, const Precision& precision) const {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const std::size_t bytes = BytesOfPool(config, precision, 1, capacity);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kMostBytes / bytes), 1,
                                  std::ssize(ids));
}

std::size_t SamplePrompts::CacheBytes(const DecoderConfig& config,
                                      const Precision& precision) const {
  if (ids.empty()) return 0;
  return BytesOfPool(config, precision, Slots(config, precision), capacity);
}

}  // namespace qlora
