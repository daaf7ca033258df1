// The modules and layers that the options of an adapter name.
#ifndef QLORA_PLAN_TARGET_MODULES_H_
#define QLORA_PLAN_TARGET_MODULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/peft/peft_config.h"

namespace qlora {

// lora_target_modules and exclude_modules: a single entry that is not a plain name is "all-linear"
// or a regular expression.
ModuleSelection ToSelection(const std::vector<std::string>& modules);
// {"4-7"} -> 4, 5, 6, 7. Errors: InvalidInput beyond the `layers` of the model.
std::vector<std::int64_t> ToLayers(const std::vector<std::string>& ranges, std::int64_t layers);
// The names of the linears of a layer, without the layer: "q_proj", sorted.
std::vector<std::string> LinearNamesOf(const DecoderConfig& decoder);

}  // namespace qlora

#endif  // QLORA_PLAN_TARGET_MODULES_H_
