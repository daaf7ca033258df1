// The shapes of well-known public models, so that a run can be planned before anything is
// downloaded, and the repositories that they are downloaded from.
#ifndef QLORA_HUB_KNOWN_MODELS_H_
#define QLORA_HUB_KNOWN_MODELS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

// Returns the config.json of a model, with the keys that shapes need. name: "Llama-3.1-8B", also
// with the organisation before it and with the words that name a version of the same shape:
// "meta-llama/Meta-Llama-3.1-8B-Instruct". Capitals do not matter. Nothing for other models.
std::optional<Json> KnownModelConfig(std::string_view name);

// Returns the repository of the hub, "meta-llama/Llama-3.2-1B", for a known name without
// organisation; "" for other names.
std::string KnownRepository(std::string_view name);

// Returns the names as the publishers write them, grouped by family.
std::vector<std::string> KnownModelNames();

// Returns the names that one which is not known may mean: those that begin with it, of a family
// ("gpt-oss"), or the nearest, "Qwen/Qwen3-7B" -> Qwen3-4B, Qwen3-8B. None where no name is near.
std::vector<std::string> NearKnownModels(std::string_view name);

}  // namespace qlora

#endif  // QLORA_HUB_KNOWN_MODELS_H_
