// The values of a configuration as text, so that a run can tell that they are those of before.
#ifndef QLORA_CONFIG_CONFIG_TEXT_H_
#define QLORA_CONFIG_CONFIG_TEXT_H_

#include <string>

#include "config/config.h"

namespace qlora {

// Returns "vocab_size=512;hidden_size=64;...": every value that decides what the model computes of
// its weights. Equal texts, equal functions. The fields of layers, tables and experts are one hash.
// Without names of modules and classes, which two forms of one model spell differently, and without
// what belongs to a rank or is for people.
std::string ConfigText(const DecoderConfig& config);

// Returns "rope, rms_norm_eps 1e-06, now 1e-05" for two such texts: the values that differ.
std::string DescribeConfigDifference(const std::string& then, const std::string& now);

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_TEXT_H_
