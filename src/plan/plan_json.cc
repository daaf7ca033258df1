#include "plan/plan_json.h"

#include <nlohmann/json.hpp>

#include "data/sample_display.h"
#include "io/json.h"

namespace qlora {
namespace {

OrderedJson MemoryToJson(const MemoryPlan& plan) {
  OrderedJson parts = OrderedJson::object();
  for (const MemoryPart& part : plan.parts) parts[part.name] = part.bytes;
  OrderedJson ladder = OrderedJson::object();
  for (const MemoryPart& rung : plan.ladder) ladder[rung.name] = rung.bytes;
  return {{"parts", parts},
          {"recompute", plan.recompute},
          {"ladder", ladder},
          {"train_peak", plan.train_peak},
          {"eval_peak", plan.eval_peak},
          {"save_peak", plan.save_peak},
          {"peak", plan.peak()}};
}

OrderedJson DiskToJson(const DiskPlan& disk) {
  return {{"folder", disk.folder},         {"adapter", disk.adapter},
          {"checkpoint", disk.checkpoint}, {"checkpoints", disk.checkpoints},
          {"needed", disk.needed},         {"free", disk.free}};
}

OrderedJson RanksToJson(const RankPlan& plan) {
  OrderedJson stages = OrderedJson::array();
  for (const StagePlan& stage : plan.of_stages) {
    stages.push_back(
        {{"first_layer", stage.first_layer}, {"layers", stage.layers}, {"memory", stage.memory}});
  }
  return {{"stages", stages},
          {"idle_share", plan.idle_share},
          {"world_size", plan.ranks},
          {"micro_batches", plan.micro_batches},
          {"micro_batches_of_rank", plan.micro_batches_of_rank},
          {"bytes_sent_per_step", plan.bytes_sent}};
}

}  // namespace

OrderedJson PlanToJson(const TrainPlan& plan) {
  return {{"steps", plan.total_steps},
          {"warmup_steps", plan.warmup_steps},
          {"data", TrainingDataToJson(plan.data)},
          {"prompt_layout", plan.prompt_layout},
          {"memory", MemoryToJson(plan.memory)},
          {"disk", DiskToJson(plan.disk)},
          {"ranks", RanksToJson(plan.ranks)},
          {"warnings", plan.warnings}};
}

OrderedJson PlanToJson(const ShapePlan& plan) {
  return {{"model", plan.model},
          {"has_weights", plan.has_weights},
          {"parameters", plan.parameters},
          {"assumed", {{"sequence_tokens", plan.length}, {"micro_batch_tokens", plan.rows}}},
          {"memory", MemoryToJson(plan.memory)},
          {"disk", DiskToJson(plan.disk)},
          {"ranks", RanksToJson(plan.ranks)},
          {"warnings", plan.warnings}};
}

std::string PlanJson(const TrainPlan& plan) { return FormatJson(PlanToJson(plan)); }
std::string PlanJson(const ShapePlan& plan) { return FormatJson(PlanToJson(plan)); }

}  // namespace qlora
