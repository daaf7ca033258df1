#include "train/run_info.h"

#include <filesystem>

#include "base/file.h"
#include "data/dataset_report.h"
#include "io/json.h"
#include "train/resume_options.h"

namespace qlora {

void WriteRunInfo(const TrainPlan& plan) {
  const std::filesystem::path dir = plan.options.output_dir;
  WriteTextFile(dir / kTrainConfig, FormatJson(OptionsToJson(plan.options), 2) + "\n");
  OrderedJson parts = OrderedJson::object();
  for (const MemoryPart& part : plan.memory.parts) parts[part.name] = part.bytes;
  OrderedJson info = {{"total_steps", plan.total_steps},
                      {"memory", {{"parts", parts}, {"peak", plan.memory.peak()}}},
                      {"data", ReportToJson(plan.data.train)}};
  if (plan.data.held_out) info["eval_data"] = ReportToJson(*plan.data.held_out);
  WriteTextFile(dir / kRunInfo, FormatJson(info, 2) + "\n");
}

}  // namespace qlora
