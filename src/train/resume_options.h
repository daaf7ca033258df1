// Options of a run as JSON, and which of them may change when the run resumes.
#ifndef QLORA_TRAIN_RESUME_OPTIONS_H_
#define QLORA_TRAIN_RESUME_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "io/json_fwd.h"
#include "qlora/train.h"

namespace qlora {

// True for the options that say where, how often and how fast a run works, not what it computes.
bool MayChangeOnResume(std::string_view option);

// All options as JSON text values.
Json OptionsToJson(TrainOptions options);

// The options that a checkpoint records and a resumed run must share: those that may not change,
// with compute_dtype as the activation type that was chosen, and the fingerprint of the data.
Json OptionsToResume(const TrainOptions& options, DType activation, std::uint64_t fingerprint);

}  // namespace qlora

#endif  // QLORA_TRAIN_RESUME_OPTIONS_H_
