#include "train/samples.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {

Samples::Samples(const std::vector<std::string>& prompts, std::int64_t max_new_tokens,
                 const Tokenizer& tokenizer, const DecoderConfig& config)
    : max_new_tokens_(max_new_tokens) {
  for (const std::string& prompt : prompts) {
    prompts_.push_back(tokenizer.Encode(prompt, true));
    const auto tokens = static_cast<std::int64_t>(prompts_.back().size());
    if (tokens == 0) ThrowInvalidInput("sample_prompts: '{}' has no tokens", prompt);
    if (tokens + max_new_tokens > config.max_position_embeddings) {
      ThrowInvalidInput(
          "sample_prompts: '{}' has {} tokens, and with sample_max_new_tokens {} that is more than "
          "the {} positions of the model",
          prompt, tokens, max_new_tokens, config.max_position_embeddings);
    }
    for (const std::int32_t id : prompts_.back()) {
      if (id >= config.vocab_size) {
        ThrowInvalidInput(
            "sample_prompts: token id {} ('{}') lies beyond the model's vocabulary of {}", id,
            tokenizer.TokenText(id), config.vocab_size);
      }
    }
    rows_ = std::max(rows_, tokens);
    capacity_ = std::max(capacity_, tokens + max_new_tokens);
  }
}

std::size_t Samples::CacheBytes(const DecoderConfig& config, const Precision& precision) const {
  if (empty()) return 0;
  Carver plan;
  LayoutKvCache(plan, config, precision, capacity_);
  return plan.bytes();
}

void Samples::Reserve(const Decoder& decoder) {
  if (!empty()) cache_.emplace(decoder, capacity_);
}

std::string Samples::Write(std::size_t i, const Decoder& decoder, const Tokenizer& tokenizer,
                           const Arena& memory) {
  EvalMemory activations(decoder, memory);
  KvCache& cache = cache_->cache();
  cache.length = 0;
  const auto next = [&](std::span<const std::int32_t> ids) {
    const auto rows = static_cast<std::int64_t>(ids.size());
    Activations& pass = activations.ForRows(rows);
    decoder.ForwardCached(ids, cache, pass);
    const auto last = static_cast<std::int32_t>(rows - 1);
    const MatrixView logits = decoder.Logits({&last, 1}, pass);
    const float* row = logits.Row<float>(0);
    return static_cast<std::int32_t>(std::max_element(row, row + logits.cols) - row);
  };
  const std::vector<std::int32_t>& ends = tokenizer.eos_ids();
  Tokenizer::StreamDecoder stream(tokenizer, true, prompts_[i]);
  std::string text;
  std::int32_t token = next(prompts_[i]);
  for (std::int64_t n = 0; n < max_new_tokens_; ++n) {
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
    text += stream.Add(token);
    if (n + 1 < max_new_tokens_) token = next({&token, 1});
  }
  return text + stream.Finish();
}

}  // namespace qlora
