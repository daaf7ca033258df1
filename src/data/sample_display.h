// Samples as people can check them: which tokens are trained on and which are masked.
#ifndef QLORA_DATA_SAMPLE_DISPLAY_H_
#define QLORA_DATA_SAMPLE_DISPLAY_H_

#include <cstdint>
#include <string>

#include "data/batch_stream.h"
#include "data/dataset.h"
#include "data/training_data.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// The text of a sample. Trained tokens stand in [brackets], or with `color` in green between masked
// ones in grey. Control characters of the data appear as \x1b, so that they cannot steer a
// terminal.
std::string RenderSample(const Sample& sample, const Tokenizer& tokenizer, bool color);

// The first `samples` samples with their places, then a legend.
std::string RenderSamples(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t samples,
                          bool color);

// What is trained on, what is held out (and how much of it is trained on all the same), and with
// packing how full it makes the micro-batches of the first epoch. Errors: as BatchStream, whether
// packed or not.
std::string RenderTrainingData(const TrainingData& data, const StreamOptions& stream);
OrderedJson TrainingDataToJson(const TrainingData& data, const StreamOptions& stream);

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_DISPLAY_H_
