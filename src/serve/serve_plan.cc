#include "serve/serve_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/printable.h"
#include "inference/engine.h"
#include "pass/pass_shape.h"
#include "pass/state_pool.h"
#include "plan/memory_plan.h"

namespace qlora {
namespace {

// Fewer answers at the same time are worth a shorter context, down to this one.
constexpr std::int64_t kWantedSequences = 4;
constexpr std::int64_t kLeastContext = 4096;

// Bytes for keys and values.
std::size_t BytesForKeys(const LoadedModel& base, const ServeOptions& options, std::size_t passes) {
  if (!options.kv_memory.empty()) return ParseBytes(options.kv_memory);
  const std::size_t available = base.backend->memory().Available();
  std::size_t bytes = available / 2;
  if (!options.max_memory.empty()) {
    const std::size_t limit = ParseBytes(options.max_memory);
    const std::size_t held = ResidentBytes();
    bytes = limit > held ? std::min(limit - held, available) : 0;
    // One limit for the server and its jobs.
    if (!options.runs.empty()) bytes /= 2;
  }
  return bytes > passes ? bytes - passes : 0;
}

}  // namespace

ServePlan PlanServing(const LoadedModel& base, const std::vector<ServedModelPtr>& models,
                      const ServeOptions& options) {
  const std::int64_t model_context = base.config.max_position_embeddings;
  if (options.context_length > model_context) {
    ThrowInvalidInput("context_length: {} is more than the model's own of {} tokens",
                      options.context_length, model_context);
  }
  ServePlan plan;
  EngineLimits& limits = plan.limits;
  limits.queue = options.max_queue;
  limits.step_ms = options.max_step_ms;
  const std::int64_t context = options.context_length > 0 ? options.context_length : model_context;
  limits.positions = context;
  limits.rows = std::max(std::min(kMostPromptRows, context), Engine::LeastRows(base.config));
  Adapters adapters;
  std::size_t adapter_bytes = 0;
  for (const ServedModelPtr& model : models) {
    if (model->adapter == nullptr) continue;
    adapters.push_back(model->adapter.get());
    adapter_bytes += model->adapter->bytes();
  }
  const std::size_t passes =
      BytesOfPass(base.config, adapters, base.precision, EvalShape(base.config, limits.rows));
  const std::size_t bytes = BytesForKeys(base, options, passes);
  const auto fit = [&] {
    const std::size_t slot = BytesOfPool(base.config, base.precision, 1, limits.positions);
    const std::size_t most = bytes / std::max<std::size_t>(slot, 1);
    return static_cast<std::int64_t>(
        std::min<std::size_t>(most, static_cast<std::size_t>(options.max_sequences)));
  };
  const std::int64_t wanted = std::min(kWantedSequences, options.max_sequences);
  while (options.context_length == 0 && fit() < wanted && limits.positions / 2 >= kLeastContext) {
    limits.positions /= 2;
  }
  limits.sequences = fit();
  const std::size_t slot = BytesOfPool(base.config, base.precision, 1, limits.positions);
  if (limits.sequences < 1) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("keys and values of {} tokens need {}, and there is room for {}; give "
                            "a smaller context_length, or more memory",
                            limits.positions, FormatBytes(slot), FormatBytes(bytes)));
  }
  if (limits.sequences < options.max_sequences || limits.positions < context) {
    plan.note = fmt::format("memory for {} of {} tokens each; the model reads {}",
                            Counted(limits.sequences, "answer"), limits.positions, model_context);
  }
  const WeightSizes& weights = base.weights.sizes;
  plan.parts = {{"weights", weights.owned + weights.mapped},
                {"adapters", adapter_bytes},
                {"keys and values",
                 BytesOfPool(base.config, base.precision, limits.sequences, limits.positions)},
                {"passes", passes}};
  return plan;
}

}  // namespace qlora
