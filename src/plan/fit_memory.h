// Fits a run into memory: chooses the recomputation of layers, and finds changes with which a run
// that is too large would fit.
#ifndef QLORA_PLAN_FIT_MEMORY_H_
#define QLORA_PLAN_FIT_MEMORY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "adapter/lora.h"
#include "data/batch_stream.h"
#include "model/weights.h"
#include "plan/memory_plan.h"
#include "plan/run/run_data.h"
#include "plan/sample_prompts.h"
#include "qlora/context.h"
#include "qlora/train_options.h"
#include "qlora/train_plan.h"
#include "step/gradient_tree.h"

namespace qlora {

// The data of a run as far as memory depends on them.
struct DataExtent {
  std::int64_t longest = 0;           // tokens of the longest sample that is trained on
  std::int64_t held_out_longest = 0;  // 0: nothing is held out
  // DataReport::largest and unfolding of samples of several sequences, which no max_length cuts.
  std::int64_t held_out_largest = 0;
  double unfolding = 1;
  double held_out_unfolding = 1;
  // Tokens of the largest sample that is measured under the reference of preferences.
  std::int64_t measured_largest = 0;
  // Tokens of the longest sample and of a micro-batch of the anchors; 0: there are none.
  std::int64_t anchor_longest = 0;
  std::int64_t anchor_rows = 0;
  StreamOptions stream;
  // Rows of the largest micro-batch with these options of the stream.
  std::function<std::int64_t(const StreamOptions&)> max_rows;
};
// `data` must outlive the result.
DataExtent ExtentOf(const RunData& data);

// The parts of a run that decide how much memory it needs.
struct RunParts {
  const TrainOptions& options;
  const DataExtent& data;
  const SamplePrompts& prompts;
  const DecoderConfig& config;
  const Precision& precision;
  const LoraAdapter& adapter;
  const WeightSizes& weights;
  const Backend& backend;
  const RankPlace& place;
  const std::vector<IndexRange>& parts;  // of the adapter, whose gradients the stage adds up
};

struct FittedRun {
  MemoryPlan plan;
  ActivationNeeds needs;
  std::int64_t positions = 0;  // positions of the longest sequence
};
FittedRun FitMemory(const RunParts& run);

}  // namespace qlora

#endif  // QLORA_PLAN_FIT_MEMORY_H_
