#include "train/samples.h"

#include <algorithm>

#include "base/check.h"
#include "model/cached_sequence.h"
#include "train/prepared_run.h"

namespace qlora {

// Encoded before weights are loaded: a prompt that cannot be answered is an error of the options,
// and the longest prompt decides the size of the cache.
SamplePrompts EncodePrompts(const TrainOptions& options, const PromptLayout& layout,
                            const RunData& data, const DecoderConfig& config) {
  if (options.sample_prompts.empty()) return {};
  const Tokenizer& tokenizer = data.tokenizer;
  const PromptRenderer renderer(layout, tokenizer, data.chat.get());
  SamplePrompts prompts;
  // A conversation ends an answer with the end of the turn, which need not be an end of the text.
  prompts.ends = tokenizer.eos_ids();
  if (layout.kind == PromptLayout::Kind::kChat) {
    if (const auto end = data.chat->turn_end()) prompts.ends.push_back(*end);
  }
  const std::int64_t new_tokens = options.sample_max_new_tokens;
  for (const std::string& text : options.sample_prompts) {
    const PromptText prompt = options.sample_raw ? PromptText{text} : renderer.Prompt(text, "");
    const std::vector<std::int32_t> ids = EncodePrompt(tokenizer, prompt);
    const std::int64_t tokens = std::ssize(ids);
    if (tokens == 0) ThrowInvalidInput("sample_prompts: '{}' has no tokens", text);
    if (tokens + new_tokens > config.max_position_embeddings) {
      ThrowInvalidInput(
          "sample_prompts: '{}' has {} tokens, and with sample_max_new_tokens {} that is more than "
          "the {} positions of the model",
          text, tokens, new_tokens, config.max_position_embeddings);
    }
    for (const std::int32_t id : ids) {
      if (id < config.vocab_size) continue;
      ThrowInvalidInput("sample_prompts: token id {} ('{}') exceeds the model's vocabulary of {}",
                        id, tokenizer.TokenText(id), config.vocab_size);
    }
    prompts.rows = std::max(prompts.rows, tokens);
    prompts.capacity = std::max(prompts.capacity, tokens + new_tokens);
    prompts.ids.push_back(ids);
  }
  return prompts;
}

std::size_t SamplePrompts::CacheBytes(const DecoderConfig& config,
                                      const Precision& precision) const {
  if (ids.empty()) return 0;
  Carver plan;
  LayoutKvCache(plan, config, precision, capacity);
  return plan.bytes();
}

Samples::Samples(const TrainPlan& plan, Session& session, RunLog& log)
    : plan_(plan), session_(session), log_(log) {
  const SamplePrompts& prompts = plan.run->prompts;
  if (!prompts.ids.empty()) cache_.emplace(*session.decoder, prompts.capacity);
}

bool Samples::IsDue(const TrainPosition& at) const {
  const std::int64_t every = plan_.options.sample_steps;
  return every > 0 && at.step % every == 0 && at.step < plan_.total_steps;
}

void Samples::Write(TrainPosition& at) {
  // Recorded in checkpoints, so that a resumed run does not write the same samples twice.
  if (at.sampled_step == at.step) return;
  at.sampled_step = at.step;
  for (std::int64_t i = 0; i < std::ssize(plan_.run->prompts.ids); ++i) {
    log_.WriteSample({at.step, plan_.options.sample_prompts[i], TextAfter(i)});
  }
}

// The whole prompt is one pass, each new token another one of one row. All prompts use the same
// cache, one after the other. Greedy: texts of different steps differ by the weights alone.
std::string Samples::TextAfter(std::int64_t i) {
  const Decoder& decoder = *session_.decoder;
  const Tokenizer& tokenizer = plan_.run->data->tokenizer;
  const std::vector<std::int32_t>& prompt = plan_.run->prompts.ids[i];
  EvalMemory passes(decoder, {&session_.adapter}, session_.memory);
  CachedSequence sequence(decoder, &session_.adapter, passes, plan_.run->prompts.rows,
                          cache_->cache());
  const std::vector<std::int32_t>& ends = plan_.run->prompts.ends;
  Tokenizer::StreamDecoder stream(tokenizer, true, prompt);
  std::string text;
  const auto next = [&](std::span<const float> logits) -> std::optional<std::int32_t> {
    const auto token =
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) return std::nullopt;
    text += stream.Add(token);
    return token;
  };
  sequence.Generate(prompt, plan_.options.sample_max_new_tokens, next);
  return text + stream.Finish();
}

}  // namespace qlora
