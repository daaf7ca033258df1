// Texts that the model writes during training, for people to read (sample_prompts).
#ifndef QLORA_TRAIN_SAMPLES_H_
#define QLORA_TRAIN_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/setup.h"
#include "qlora/train.h"
#include "train/run_data.h"
#include "train/run_log.h"
#include "train/session.h"

namespace qlora {

// The prompts as tokens, and the sizes that continuing them needs.
struct SamplePrompts {
  std::vector<std::vector<std::int32_t>> ids;  // tokens of each prompt, in its layout
  std::vector<std::int32_t> ends;              // tokens that end an answer
  std::int64_t rows = 0;                       // tokens of the longest prompt
  std::int64_t capacity = 0;  // positions of the longest prompt with its continuation

  // Bytes of the keys and values of one prompt and its continuation.
  std::size_t CacheBytes(const DecoderConfig& config, const Precision& precision) const;
};
// Prompts in `layout`. Errors: InvalidInput for a prompt without tokens, one that the
// layout has no place for, or one that leaves no room for a continuation.
SamplePrompts EncodePrompts(const TrainOptions& options, const PromptLayout& layout,
                            const RunData& data, const DecoderConfig& config);

// Continues every prompt before and after training and every sample_steps steps. Changes nothing of
// the run; the same weights give the same texts.
class Samples {
 public:
  Samples(const TrainPlan& plan, Session& session, RunLog& log);

  // True after every sample_steps steps but the last step, after which samples are always written.
  bool IsDue(const TrainPosition& at) const;
  // Writes a text for every prompt to the log, once for each step.
  void Write(TrainPosition& at);

 private:
  // The text that follows prompt i, of the likeliest tokens.
  std::string TextAfter(std::int64_t i);

  const TrainPlan& plan_;
  Session& session_;
  RunLog& log_;
  std::optional<CacheMemory> cache_;
};

}  // namespace qlora

#endif  // QLORA_TRAIN_SAMPLES_H_
