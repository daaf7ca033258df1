#include "plan/run/run_base.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "adapter/lora_init.h"
#include "checkpoint/config_text.h"
#include "hub/hub_cache.h"
#include "model/checkpoint.h"
#include "model/model_fingerprint.h"
#include "model/shared_options.h"
#include "plan/new_adapter.h"
#include "plan/stage_plan.h"

namespace qlora {

RunBase PlanBase(Context& context, const TrainOptions& options, const RunStart& start) {
  const std::filesystem::path model_dir = ResolveModelDir(options.model_name_or_path);
  DecoderConfig config = LoadDecoderConfig(model_dir);
  std::vector<IndexRange> stages = PlanStages(config, options);
  config.stage = stages[start.place.stage()];
  const Precision precision =
      ParsePrecision(options.compute_dtype, *start.backends, options.int8_backward);
  LoraAdapter adapter = DescribeAdapter(options, config, HostMemory());

  BaseRecord record = {options.model_name_or_path, options.load_in_4bit, options.quantization};
  LoadOptions load = LoadOptionsOf(record);
  const std::unique_ptr<Backend> backend = start.backends->Make(context, precision);
  WeightSizes weights = PlanWeights(context, *backend, model_dir, config, load);
  const std::uint64_t fingerprint = ModelFingerprint(model_dir);
  record.model_fingerprint = fmt::format("{:016x}", fingerprint);
  AdoptStoredForm(record, weights);
  CheckLoraInit(ParseLoraInit(options.init_lora_weights), adapter,
                record.load_in_4bit && !weights.stored_4bit);

  std::vector<std::string> notes = weights.notes;
  if (!options.load_in_4bit && !weights.block_formats.empty()) {
    notes.push_back(NoteIdle4bit(weights));
  }
  notes.push_back(NoteIdleInt8(precision, weights));
  notes.push_back(WarnOfRanks(adapter));
  notes.push_back(WarnOfUnevenExperts(adapter));
  RecordedModel recorded{ComputeTypeOf(precision), fingerprint, ConfigText(config)};
  return {.model_dir = model_dir,
          .config = std::move(config),
          .stages = std::move(stages),
          .precision = precision,
          .record = std::move(record),
          .load = std::move(load),
          .recorded = std::move(recorded),
          .weights = std::move(weights),
          .adapter = std::move(adapter),
          .notes = std::move(notes)};
}

}  // namespace qlora
