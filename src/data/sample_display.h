// Samples as people can check them: which tokens are trained on and which are masked.
#ifndef QLORA_DATA_SAMPLE_DISPLAY_H_
#define QLORA_DATA_SAMPLE_DISPLAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "data/batch_stream.h"
#include "data/dataset.h"
#include "data/training_data.h"
#include "io/json_fwd.h"
#include "qlora/data_report.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the text of a sample. Trained tokens appear in [brackets], or with `color` in green
// between masked ones in grey, and the labels of a choice with their probabilities likewise: [B] or
// [A 0.3, B 0.7]. Each branch begins in a line of its own with "| ". Control characters of the data
// appear as \x1b, so that they cannot steer a terminal.
std::string RenderSample(const Sample& sample, const Tokenizer& tokenizer, bool color);

// Returns the first `samples` samples with their places, then a legend.
std::string RenderSamples(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t samples,
                          bool color);

// Returns the same samples: [{"place", "ids", "labels", "parts": [{"trained", "text"}]}]. Parts of
// branches have their number, from 0, as "branch", and those of choices are no tokens: "choice".
OrderedJson SamplesToJson(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t samples);

// Reports the trained samples, the held-out samples, the number of samples that are in both, and
// with packing how full the micro-batches of the first epoch are. Errors: as BatchStream, whether
// packed or not.
TrainingDataReport ReportTrainingData(const Dataset& train, const std::optional<Dataset>& held_out,
                                      const StreamOptions& stream);
std::string RenderTrainingData(const TrainingDataReport& report);
OrderedJson TrainingDataToJson(const TrainingDataReport& report);

// Returns how long both answers of pairs are, and what their shared prompts save.
std::string RenderPairs(const Dataset& pairs);
OrderedJson PairsToJson(const Dataset& pairs);

// Returns a warning when at least half of the held-out samples are trained on as well, or "".
std::string WarnOfSharedSamples(const TrainingDataReport& report);

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_DISPLAY_H_
