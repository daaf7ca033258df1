// rank_pattern and alpha_pattern of PEFT's configuration, for modules of several ranks and scales.
//
// The first entry that matches a module counts, and JSON objects are written with sorted keys: the
// order is lost. So entries that match one module always have one value.
#ifndef QLORA_ADAPTER_RANK_PATTERNS_H_
#define QLORA_ADAPTER_RANK_PATTERNS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/peft/peft_config.h"

namespace qlora {

// A module, or a parameter of all experts of a layer, with what it has of its own.
struct RankedTarget {
  std::string name;  // the end of the path that is the same in all layers: "q_proj"
  std::string path;  // as patterns see it (PatternPath)
  std::int64_t rank = 0;
  double alpha = 0;
};

// The end of the path of a linear or table that is the same in all layers: "q_proj", or that of its
// parameter, "mlp.experts.down_proj", where experts are joined.
std::string TargetName(const DecoderConfig& decoder, const std::string& path);

// Replaces both patterns of `config`. `targets` are all that the adapter has; entries are needed
// for those whose rank is not r, or alpha not lora_alpha: the name where all that it matches agree,
// otherwise paths.
void SetPatterns(const std::vector<RankedTarget>& targets, AdapterConfig& config);

}  // namespace qlora

#endif  // QLORA_ADAPTER_RANK_PATTERNS_H_
