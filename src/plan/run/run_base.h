// The base model of a run and the adapter on it, as far as configurations and the headers of the
// weights tell.
#ifndef QLORA_PLAN_RUN_RUN_BASE_H_
#define QLORA_PLAN_RUN_RUN_BASE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "base/index_range.h"
#include "checkpoint/resume_options.h"
#include "config/config.h"
#include "model/base_record.h"
#include "model/weights.h"
#include "plan/run/run_start.h"
#include "qlora/context.h"
#include "qlora/train_options.h"

namespace qlora {

struct RunBase {
  std::filesystem::path model_dir;
  DecoderConfig config;            // of the stage of this rank
  std::vector<IndexRange> stages;  // the layers of each
  Precision precision;
  BaseRecord record;  // without the prompts of the data
  LoadOptions load;
  RecordedModel recorded;  // without the hash of the weights
  WeightSizes weights;
  LoraAdapter adapter;             // for its sizes; LoadRun makes the adapter that is trained
  std::vector<std::string> notes;  // some may be ""
};

// Of the weights are read the first bytes of each tensor, for the fingerprint, and embedding and
// head where both are stored though they are tied. Errors: InvalidInput for a model or an adapter
// that cannot be trained so.
RunBase PlanBase(Context& context, const TrainOptions& options, const RunStart& start);

}  // namespace qlora

#endif  // QLORA_PLAN_RUN_RUN_BASE_H_
