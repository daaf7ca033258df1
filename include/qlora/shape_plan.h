// The needs of training, planned from the shape of a model alone.
#ifndef QLORA_SHAPE_PLAN_H_
#define QLORA_SHAPE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/train_plan.h"

namespace qlora {

// The needs of a run whose model's shape is known, without data: all sequences are taken to have
// max_length tokens.
struct ShapePlan {
  std::string model;            // where the shape is from
  bool has_weights = false;     // they are at hand
  std::string weight_types;     // otherwise: what weights are taken to be in, "bfloat16"
  std::int64_t parameters = 0;  // of the model
  std::int64_t length = 0;      // tokens of a sequence
  std::int64_t rows = 0;        // tokens of a micro-batch
  std::vector<std::string> warnings;
  MemoryPlan memory;
  RankPlan ranks;
  DiskPlan disk;
};

// A plan without data and weights. options.model_name_or_path may also be a config.json, a folder
// with no more than that, or the name of a well-known model such as "Llama-3.1-8B".
// world_size: ranks, a machine each. Errors: InvalidInput when the options, the model or the
// adapter are wrong.
ShapePlan PlanShape(Context& context, const TrainOptions& options, int world_size = 1);
void CheckPlan(const ShapePlan& plan);
// As PlanJson of a TrainPlan.
std::string PlanJson(const ShapePlan& plan);

}  // namespace qlora

#endif  // QLORA_SHAPE_PLAN_H_
