// generation_config.json: how the publisher of a model recommends to sample.
#ifndef QLORA_INFERENCE_GENERATION_CONFIG_H_
#define QLORA_INFERENCE_GENERATION_CONFIG_H_

#include <filesystem>
#include <string>

#include "qlora/options.h"

namespace qlora {

// Sets the options that the file in `model_dir` has values for and the user has not set. Returns a
// text that names them, for people; "" without a file. Errors: InvalidInput for a file that is no
// JSON, or a value that the option does not take.
std::string TakeGenerationConfig(const std::filesystem::path& model_dir, OptionTable& options);

}  // namespace qlora

#endif  // QLORA_INFERENCE_GENERATION_CONFIG_H_
