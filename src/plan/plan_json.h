// Plans as JSON: what was found, under the keys that scripts know.
#ifndef QLORA_PLAN_PLAN_JSON_H_
#define QLORA_PLAN_PLAN_JSON_H_

#include "io/json_fwd.h"
#include "qlora/shape_plan.h"
#include "qlora/train_plan.h"

namespace qlora {

OrderedJson PlanToJson(const TrainPlan& plan);
OrderedJson PlanToJson(const ShapePlan& plan);

}  // namespace qlora

#endif  // QLORA_PLAN_PLAN_JSON_H_
