#include "plan/run/prepared_run.h"

#include "checkpoint/resume_options.h"
#include "io/json.h"

namespace qlora {

BaseRecord RecordedBase(const PreparedRun& run) {
  BaseRecord record = run.base.record;
  record.prompts = run.data->recorded.record;
  record.chat_template = run.data->recorded.chat_template;
  return record;
}

Json RecordedOptions(const TrainPlan& plan, std::optional<std::uint64_t> weights) {
  const PreparedRun& run = *plan.run;
  const std::optional<Dataset>& held_out = run.data->held_out;
  RecordedModel model = run.base.recorded;
  model.weights = weights;
  return RecordedOptions(plan.options, model, run.data->train, held_out ? &*held_out : nullptr);
}

}  // namespace qlora
