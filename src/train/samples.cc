#include "train/samples.h"

#include <algorithm>

#include "inference/cached_sequence.h"
#include "pass/eval_memory.h"
#include "plan/run/prepared_run.h"
#include "plan/sample_prompts.h"

namespace qlora {

Samples::Samples(const TrainPlan& plan, LoadedRun& loaded, RunLog& log)
    : plan_(plan), loaded_(loaded), log_(log) {
  const SamplePrompts& prompts = plan.run->data->prompts;
  if (prompts.ids.empty()) return;
  const Decoder& decoder = *loaded.decoder;
  state_.emplace(decoder.backend().memory(), decoder.config(), decoder.precision(),
                 prompts.capacity);
}

bool Samples::IsDue(const TrainPosition& at) const {
  const std::int64_t every = plan_.options.sample_steps;
  return every > 0 && at.step % every == 0 && at.step < plan_.total_steps;
}

void Samples::Write(TrainPosition& at) {
  // Recorded in checkpoints, so that a resumed run does not write the same samples twice.
  if (at.sampled_step == at.step || !loaded_.communicator.is_root()) return;
  at.sampled_step = at.step;
  for (std::int64_t i = 0; i < std::ssize(plan_.run->data->prompts.ids); ++i) {
    log_.WriteSample({at.step, plan_.options.sample_prompts[i], TextAfter(i)});
  }
}

// The whole prompt is one pass. Each new token is a pass of one row. All prompts use the same
// cache, one after the other. Greedy: texts of different steps differ by the weights alone.
std::string Samples::TextAfter(std::int64_t i) {
  const Decoder& decoder = *loaded_.decoder;
  const Tokenizer& tokenizer = plan_.run->data->tokenizer;
  const std::vector<std::int32_t>& prompt = plan_.run->data->prompts.ids[i];
  EvalMemory passes(decoder, {&loaded_.adapter}, loaded_.passes.front());
  CachedSequence sequence(decoder, &loaded_.adapter, passes, plan_.run->data->prompts.rows,
                          state_->state());
  const std::vector<std::int32_t>& ends = plan_.run->data->prompts.ends;
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
