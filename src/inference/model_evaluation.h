// The loss of a loaded model on data, in the layout of its training.
#ifndef QLORA_INFERENCE_MODEL_EVALUATION_H_
#define QLORA_INFERENCE_MODEL_EVALUATION_H_

#include <cstdint>
#include <functional>

#include "inference/loaded_model.h"
#include "qlora/model.h"

namespace qlora {

// As Model::Evaluate.
EvalResult EvaluateModel(LoadedModel& model, const EvalOptions& options,
                         const std::function<void(std::int64_t done, std::int64_t total)>& progress,
                         const std::function<void(std::int64_t done, std::int64_t total)>& reading);

}  // namespace qlora

#endif  // QLORA_INFERENCE_MODEL_EVALUATION_H_
