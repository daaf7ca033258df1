// The shapes of well-known public models, so that a run can be planned before anything is
// downloaded.
#ifndef QLORA_MODEL_KNOWN_MODELS_H_
#define QLORA_MODEL_KNOWN_MODELS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace qlora {

// name: "Llama-3.1-8B", also with the organisation before it and with the words that name a version
// of the same shape: "meta-llama/Meta-Llama-3.1-8B-Instruct". Capitals do not matter. Nothing for
// other models.
std::optional<DecoderConfig> KnownModelConfig(std::string_view name);

// The names as the publishers write them, grouped by family.
std::vector<std::string> KnownModelNames();

}  // namespace qlora

#endif  // QLORA_MODEL_KNOWN_MODELS_H_
