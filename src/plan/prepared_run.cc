#include "plan/prepared_run.h"

#include "checkpoint/resume_options.h"
#include "io/json.h"

namespace qlora {

Json RecordedOptions(const TrainPlan& plan) {
  const PreparedRun& run = *plan.run;
  const std::optional<Dataset>& held_out = run.data->held_out;
  return RecordedOptions(plan.options, run.precision.activation, run.model_fingerprint,
                         run.data->train, held_out ? &*held_out : nullptr);
}

}  // namespace qlora
