// Samples as people can check them: which tokens are trained on and which are masked.
#ifndef QLORA_TEXT_DATA_VIEW_H_
#define QLORA_TEXT_DATA_VIEW_H_

#include <cstdint>
#include <string>

#include "text/batch_stream.h"
#include "text/data_setup.h"
#include "text/dataset.h"
#include "text/tokenizer.h"

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

#endif  // QLORA_TEXT_DATA_VIEW_H_
