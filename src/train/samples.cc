#include "train/samples.h"

#include <utility>

#include "inference/text_answers.h"
#include "pass/eval_memory.h"
#include "plan/run/prepared_run.h"
#include "plan/sample_prompts.h"

namespace qlora {

Samples::Samples(const TrainPlan& plan, LoadedRun& loaded, RunLog& log)
    : plan_(plan), loaded_(loaded), log_(log) {
  const SamplePrompts& prompts = plan.run->data->prompts;
  if (prompts.ids.empty()) return;
  const Decoder& decoder = *loaded.decoder;
  const std::int64_t slots = prompts.Slots(decoder.config(), decoder.precision());
  pool_.emplace(decoder.backend().memory(), decoder.config(), decoder.precision(), slots,
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
  if (!pool_) return;
  const std::vector<GenerateReport> texts = Texts();
  for (std::int64_t i = 0; i < std::ssize(texts); ++i) {
    log_.WriteSample({at.step, plan_.options.sample_prompts[i], texts[i].text});
  }
}

// Greedy: texts of different steps differ by the weights alone.
std::vector<GenerateReport> Samples::Texts() {
  const Decoder& decoder = *loaded_.decoder;
  const SamplePrompts& prompts = plan_.run->data->prompts;
  GenerateOptions options;
  options.max_new_tokens = plan_.options.sample_max_new_tokens;
  std::vector<EngineRequest> requests;
  for (const std::vector<std::int32_t>& ids : prompts.ids) {
    requests.push_back({ids, &loaded_.adapter, options, prompts.ends});
  }
  EvalMemory passes(decoder, {&loaded_.adapter}, loaded_.passes.front());
  Engine engine(decoder, passes, pool_->pool(), prompts.rows);
  return WriteAnswers(engine, std::move(requests), plan_.run->data->tokenizer);
}

}  // namespace qlora
