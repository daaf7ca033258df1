// Every option of a training run, on the command line or in a YAML file. The verbs that train,
// plan, check, migrate and describe configurations declare the same table.
#ifndef QLORA_CLI_TRAINING_TRAIN_SETTINGS_H_
#define QLORA_CLI_TRAINING_TRAIN_SETTINGS_H_

#include <cstdint>
#include <string>

#include "qlora/options.h"
#include "qlora/train_options.h"

namespace qlora {

struct TrainSettings {
  TrainOptions options;
  std::string save_quantized;  // folder of a 4-bit base; see qlora/quantized_base.h
  std::string gate;            // tasks of which the adapter may lose only so much; qlora/tasks.h
  bool dry_run = false;
  std::int64_t dashboard = 0;      // port of the live page; 0: no page
  std::int64_t ddp_timeout = 300;  // seconds that a rank waits for others; 0: for ever

  void Declare(OptionTable& table);
};

// Errors: InvalidInput when the size of a step is given twice.
void CheckBatchOptions(OptionTable& table);

// Errors: InvalidInput, which begins with `origin`, when a key that a verb does not have is a name
// of an option of `qlora train`.
void RefuseTrainSetting(const std::string& key, const std::string& origin);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_TRAIN_SETTINGS_H_
