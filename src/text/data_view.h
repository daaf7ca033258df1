// Samples as people can check them: which tokens are trained on and which are masked.
#ifndef QLORA_TEXT_DATA_VIEW_H_
#define QLORA_TEXT_DATA_VIEW_H_

#include <cstdint>
#include <string>

#include "text/dataset.h"
#include "text/tokenizer.h"

namespace qlora {

// The text of a sample. Trained tokens stand in [brackets], or with `color` in green between masked
// ones in grey. Control characters of the data appear as \x1b, so that they cannot steer a
// terminal.
std::string RenderSample(const Sample& sample, const Tokenizer& tokenizer, bool color);

// The view of `inspect --dataset`: the first `samples` samples, then the report.
std::string RenderDataset(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t samples,
                          bool color);

}  // namespace qlora

#endif  // QLORA_TEXT_DATA_VIEW_H_
