// PlanShape: the memory and disk space of a run on a model whose shape alone is known.
#include "qlora/shape_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "hub/hub_cache.h"
#include "hub/known_models.h"
#include "inference/dataset_evaluation.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "machine/simd_target.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "model/shared_options.h"
#include "plan/check_options.h"
#include "plan/continued_adapter.h"
#include "plan/disk_plan.h"
#include "plan/fit_memory.h"
#include "plan/new_adapter.h"
#include "plan/sample_prompts.h"
#include "plan/stage_plan.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A model of which at least config.json is known.
struct ModelShape {
  std::string source;
  DecoderConfig config;
  std::optional<fs::path> weights;  // the directory that holds them
};

// The directory may have a config.json and no weights, for example before they are downloaded.
ModelShape ShapeOfDirectory(const fs::path& dir) {
  ModelShape shape{dir.string(), LoadDecoderConfig(dir), std::nullopt};
  if (HoldsModel(dir) || FindGguf(dir)) shape.weights = dir;
  return shape;
}

// A directory with config.json, a GGUF file, a config.json itself, a model in the cache, or a
// well-known name, in this order.
ModelShape FindShape(const std::string& name) {
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored) && !FindGguf(name)) {
    return {name, ParseDecoderConfig(ReadJsonFile(name), name), std::nullopt};
  }
  if (fs::exists(name, ignored)) return ShapeOfDirectory(ResolveModelDir(name));
  try {
    return ShapeOfDirectory(ResolveModelDir(name));
  } catch (const Error& error) {
    if (const auto config = KnownModelConfig(name)) {
      return {"the table of well-known models", ParseDecoderConfig(*config, name), std::nullopt};
    }
    const std::vector<std::string> near = NearKnownModels(name);
    // A plan needs no download.
    if (!near.empty() && name.find('/') == std::string::npos) {
      ThrowInvalidInput(
          "{}: no such model; give a folder, a config.json, or a known name, such as: {}", name,
          fmt::join(near, ", "));
    }
    ThrowInvalidInput("{}; or give a config.json, or {}: {}", error.what(),
                      near.empty() ? "one of these names" : "a known name, such as",
                      fmt::join(near.empty() ? KnownModelNames() : near, ", "));
  }
}

// Every sequence has max_length tokens, and every micro-batch is full.
DataExtent FullSequences(const TrainOptions& options, std::int64_t length) {
  const DataFields& data = options.data;
  const bool evaluates = !data.eval_dataset.empty() || data.val_set_size > 0 ||
                         !data.calibration_dataset.empty() || data.calibration_size > 0;
  DataExtent extent;
  extent.longest = length;
  extent.held_out_longest = evaluates ? length : 0;
  if (!options.anchor.empty()) {
    extent.anchor_longest = std::min(length, options.anchor_tokens);
    extent.anchor_rows = options.anchor_tokens;
  }
  extent.stream.per_device_train_batch_size = options.per_device_train_batch_size;
  extent.stream.max_length = length;
  extent.stream.packing = options.data.packing;
  extent.max_rows = [](const StreamOptions& stream) {
    return stream.per_device_train_batch_size * stream.max_length;
  };
  return extent;
}

}  // namespace

ShapePlan PlanShape(Context& context, const TrainOptions& given, int world_size) {
  CheckOptions(given);
  const TrainOptions options =
      WithRanks(given.adapter.empty() ? given : WithAdapter(given), world_size);
  const ModelShape shape = FindShape(options.model_name_or_path);
  const DataLimits limits{shape.config.vocab_size, shape.config.max_position_embeddings};
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.device);
  const Precision precision =
      ParsePrecision(options.compute_dtype, *backends, options.int8_backward);
  // The path stays empty: nothing is loaded from it. Only the form of the linears decides sizes.
  const LoadOptions load = LoadOptionsOf({.model_name_or_path = "",
                                          .load_in_4bit = options.load_in_4bit,
                                          .quantization = options.quantization});
  const std::unique_ptr<Backend> backend = backends->Make(context, precision);
  const LoraAdapter adapter = DescribeAdapter(options, shape.config, backend->memory());
  // Weights that exist tell sizes exactly, also of a checkpoint that is 4-bit itself.
  const WeightSizes weights =
      shape.weights ? PlanWeights(context, *backend, *shape.weights, shape.config, load)
                    : PlanWeights(context, *backend, shape.config, load);

  ShapePlan plan;
  plan.model = shape.source;
  plan.has_weights = shape.weights.has_value();
  if (!plan.has_weights) plan.weight_types = "bfloat16";
  if (!plan.has_weights && !weights.block_formats.empty()) {
    plan.weight_types += fmt::format(", experts in {}", fmt::join(weights.block_formats, ", "));
  }
  plan.parameters = weights.parameters;
  plan.length = ResolveMaxLength(options.data.reading, limits);
  plan.warnings = weights.notes;
  plan.warnings.push_back(NoteIdleInt8(precision, weights));
  plan.warnings.push_back(WarnOfLength(options.data.reading, limits));
  plan.warnings.push_back(WarnOfRanks(adapter));
  plan.warnings.push_back(WarnOfUnevenExperts(adapter));
  plan.warnings.push_back(WarnOfScalarKernels());
  if (!options.sample_prompts.empty()) {
    plan.warnings.push_back("the memory of sample_prompts is not counted");
  }
  std::erase(plan.warnings, "");
  const DataExtent extent = FullSequences(options, plan.length);
  plan.rows = extent.max_rows(extent.stream);
  const SamplePrompts no_prompts;
  const std::vector<IndexRange> stages = PlanStages(shape.config, options);
  const auto parts = PartsOfStages(adapter, stages);
  plan.ranks = PlanRanks(RankPlaceOf(options, 0, world_size), stages, adapter, shape.config,
                         plan.rows, precision.wide);
  // A rank of each stage; the plan is that of the one that needs most.
  for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) {
    DecoderConfig config = shape.config;
    config.stage = stages[stage];
    const WeightSizes of_stage = shape.weights
                                     ? PlanWeights(context, *backend, *shape.weights, config, load)
                                     : PlanWeights(context, *backend, config, load);
    MemoryPlan memory =
        FitMemory({options, extent, no_prompts, config, precision, adapter, of_stage, *backend,
                   RankPlaceOf(options, stage, world_size), parts[stage]})
            .plan;
    plan.ranks.of_stages.push_back({stages[stage].begin, stages[stage].size(), memory.peak()});
    if (stage == 0 || memory.peak() > plan.memory.peak()) plan.memory = std::move(memory);
  }
  // Without data the numbers of steps and of checkpoints are open.
  const std::int64_t steps = std::max<std::int64_t>(options.max_steps, 1);
  const std::size_t tokenizer =
      shape.weights ? TokenizerFileBytes(*shape.weights, options.adapter) : 0;
  // The tokenizer that an adapter may bring goes into the checkpoints.
  plan.disk = PlanDisk(options, adapter, backend->memory(),
                       {tokenizer, options.adapter.empty() ? 0 : tokenizer}, steps, steps);
  return plan;
}

void CheckPlan(const ShapePlan& plan) { CheckShortage(plan.memory, plan.disk); }

}  // namespace qlora
