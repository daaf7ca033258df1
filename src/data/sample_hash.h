// Numbers that tell samples apart: by them an index knows a sample again, and finds equal ones.
#ifndef QLORA_DATA_SAMPLE_HASH_H_
#define QLORA_DATA_SAMPLE_HASH_H_

#include <cstdint>

#include "base/batch.h"

namespace qlora {

// Hashes every token with its label, in order, then branches, choices and the label of an answer.
std::uint64_t HashSample(const Sample& sample);
// Hashes the tokens alone: samples of one text are equal, whatever is trained of it.
std::uint64_t HashText(const Sample& sample);
// Hashes the tokens before the first one that is trained.
std::uint64_t HashPrompt(const Sample& sample);

}  // namespace qlora

#endif  // QLORA_DATA_SAMPLE_HASH_H_
