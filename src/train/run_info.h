// Files that describe a run, for readers of its logs.
#ifndef QLORA_TRAIN_RUN_INFO_H_
#define QLORA_TRAIN_RUN_INFO_H_

#include "qlora/train.h"

namespace qlora {

inline constexpr const char* kRunInfo = "run_info.json";  // number of steps, memory plan, data
inline constexpr const char* kTrainConfig = "train_config.json";  // all options

// Writes both files to output_dir. Errors: Runtime.
void WriteRunInfo(const TrainPlan& plan);

}  // namespace qlora

#endif  // QLORA_TRAIN_RUN_INFO_H_
