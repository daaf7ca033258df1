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
  const RunData& data = *run.data;
  RecordedModel model = run.base.recorded;
  model.weights = weights;
  return RecordedOptions(plan.options, model, data.train, data.held_out ? &*data.held_out : nullptr,
                         data.anchors ? &*data.anchors : nullptr);
}

}  // namespace qlora
