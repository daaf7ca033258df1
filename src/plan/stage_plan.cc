#include "plan/stage_plan.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "model/linear_shapes.h"
#include "step/gradient_tree.h"

namespace qlora {
namespace {

// Multiplications of a layer for a token; of experts those that it chooses.
double CostOf(const DecoderConfig& config, std::int64_t layer) {
  double cost = 0;
  ShapeLinears(config, layer).ForEach([&](const LinearShape& shape) {
    cost += static_cast<double>(shape.in) * static_cast<double>(shape.out);
  });
  if (!config.has_experts(layer)) return cost;
  return cost * static_cast<double>(config.moe.num_experts_per_tok) /
         static_cast<double>(config.moe.num_experts);
}

// Runs the schedules of all stages beside each other. Returns the time when the last op ends.
double EndOf(int stages, std::int64_t micro_batches, double forward, double backward) {
  std::vector<std::vector<StageOp>> ops;
  for (int stage = 0; stage < stages; ++stage) {
    ops.push_back(StageOpsOf(stage, stages, micro_batches));
  }
  std::vector<std::size_t> next(ops.size());
  std::vector<double> free(ops.size());
  std::map<std::pair<int, std::int64_t>, double> forward_end, backward_end;
  double end = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      if (next[stage] == ops[stage].size()) continue;
      const StageOp op = ops[stage][next[stage]];
      auto& ends = op.backward ? backward_end : forward_end;
      const int source = op.backward ? stage + 1 : stage - 1;
      double start = free[stage];
      if (source >= 0 && source < stages) {
        const auto ready = ends.find({source, op.micro_batch});
        if (ready == ends.end()) continue;
        start = std::max(start, ready->second);
      }
      free[stage] = start + (op.backward ? backward : forward);
      ends[{stage, op.micro_batch}] = free[stage];
      end = std::max(end, free[stage]);
      ++next[stage];
      moved = true;
    }
  }
  return end;
}

}  // namespace

RankPlace RankPlaceOf(const TrainOptions& options, int rank, int ranks) {
  const int stages = static_cast<int>(options.pipeline_stages);
  // Several ranks are each on another machine, until they are there.
  const std::int64_t anchors = options.anchor.empty() ? 0 : 1;
  return {.rank = rank,
          .of_host = ranks > 1 ? 0 : 1,
          .stages = stages,
          .split = {options.gradient_accumulation_steps + anchors, options.reduction_groups,
                    ranks / stages}};
}

std::vector<IndexRange> PlanStages(const DecoderConfig& config, const TrainOptions& options) {
  const int stages = static_cast<int>(options.pipeline_stages);
  if (stages == 1) return {{0, config.num_hidden_layers}};
  const auto refuse = [&](const char* what) {
    ThrowInvalidInput("pipeline_stages {}: {}; use pipeline_stages 1", stages, what);
  };
  if (stages > config.num_hidden_layers) {
    ThrowInvalidInput("pipeline_stages {}: the model has {} layers, and each stage needs one",
                      stages, config.num_hidden_layers);
  }
  if (config.per_layer_size > 0) refuse("the model has embeddings for each layer");
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (config.is_kv_shared(l)) refuse("the model has layers that share keys and values");
  }
  if (!options.modules_to_save.empty()) refuse("modules_to_save trains tables of one stage");
  if (!options.sample_prompts.empty()) refuse("sample_prompts need all layers on one rank");
  std::vector<double> cost;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) cost.push_back(CostOf(config, l));
  const double head =
      static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  return CutIntoStages(cost, head, stages);
}

std::vector<std::vector<IndexRange>> PartsOfStages(const LoraAdapter& adapter,
                                                   const std::vector<IndexRange>& stages) {
  if (stages.size() == 1) return {{{0, adapter.parameters().cols}}};
  std::vector<std::vector<IndexRange>> parts;
  for (const IndexRange& layers : stages) parts.push_back(adapter.PartsOf(layers));
  return parts;
}

RankPlan PlanRanks(const RankPlace& place, const std::vector<IndexRange>& stages,
                   const LoraAdapter& adapter, const DecoderConfig& config, std::int64_t rows,
                   DType wide) {
  RankPlan plan{.ranks = place.ranks(), .stages = place.stages};
  plan.micro_batches = place.split.micro_batches;
  const auto parts = PartsOfStages(adapter, stages);
  RankPlace of = place;
  for (of.rank = 0; of.rank < place.ranks(); ++of.rank) {
    const std::int64_t mine = place.split.MicroBatchesOfReplica(of.replica()).size();
    plan.micro_batches_of_rank = std::max(plan.micro_batches_of_rank, mine);
    std::size_t bytes = GradientTree::BytesSent(of, parts[of.stage()], adapter.parameters());
    // The residual stream goes to the next stage, its gradient to the one before.
    const int neighbours = static_cast<int>(!of.is_first_stage()) + !of.is_last_stage();
    bytes += static_cast<std::size_t>(neighbours * mine) * BytesOf(wide, rows * config.hidden_size);
    plan.bytes_sent = std::max(plan.bytes_sent, bytes);
  }
  plan.idle_share = IdleShare(place.stages, plan.micro_batches_of_rank);
  return plan;
}

double IdleShare(int stages, std::int64_t micro_batches) {
  if (stages == 1) return 0;
  const double busy = 3.0 * static_cast<double>(micro_batches);
  return 1 - busy / EndOf(stages, micro_batches, 1, 2);
}

}  // namespace qlora
