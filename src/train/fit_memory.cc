#include "train/fit_memory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/evaluate.h"
#include "train/gradient_tree.h"
#include "train/optimizer.h"

namespace qlora {
namespace {

// The fraction of free memory that a run leaves to others when max_memory is not set.
constexpr double kSpareMemory = 0.1;

// The smallest max_length that is suggested for a run that does not fit.
constexpr std::int64_t kShortest = 128;

// Positions of the longest sequence when samples are cut to max_length tokens.
std::int64_t PositionsOf(const RunParts& run, std::int64_t max_length) {
  const std::int64_t held_out = run.data.held_out ? run.data.held_out->report().longest : 0;
  const std::int64_t longest = std::max<std::int64_t>(run.data.train.report().longest, held_out);
  return std::max(std::min(longest, max_length), run.prompts.capacity);
}

// Rows of the largest pass of an evaluation or of samples.
std::int64_t EvalRowsOf(const RunParts& run, std::int64_t max_length) {
  const std::int64_t held_out =
      run.data.held_out
          ? EvalRows(std::min<std::int64_t>(run.data.held_out->report().longest, max_length))
          : 0;
  return std::max(held_out, run.prompts.rows);
}

std::vector<Recompute> AllLayers(const RunParts& run, Recompute level) {
  return std::vector<Recompute>(run.config.num_hidden_layers, level);
}

MemoryPlan PlanFor(const RunParts& run, const ActivationNeeds& needs, std::int64_t max_length) {
  MemoryPlan plan = PlanMemory(run.backend, run.config, run.adapter, run.precision, run.weights,
                               needs, Optimizer::Bytes(OptimizerOf(run.options), run.adapter));
  const std::size_t sums =
      GradientTree::Bytes(run.options.gradient_accumulation_steps, run.adapter.parameters());
  if (sums > 0) plan.Add({"sums of gradients", sums, plan.place});
  plan.Add({"rotary tables",
            RopeTables::Bytes(run.config, run.precision.wide, PositionsOf(run, max_length)),
            plan.place});
  if (!run.prompts.ids.empty()) {
    plan.Add({"keys and values of samples", run.prompts.CacheBytes(run.config, run.precision),
              plan.place});
  }
  return plan;
}

// The choice of recomputation for each layer. Overwrites needs.recompute on the way.
std::vector<Recompute> RecomputeOf(const RunParts& run, ActivationNeeds needs) {
  const TrainOptions& options = run.options;
  if (!options.gradient_checkpointing) return AllLayers(run, Recompute::kNone);
  if (options.recompute != "auto") return AllLayers(run, ParseRecompute(options.recompute));
  return ChooseRecompute(run.config.num_hidden_layers, run.backend.CheapestRecompute(),
                         MemoryLimit(options.max_memory, kSpareMemory, run.backend.memory()),
                         [&](const std::vector<Recompute>& recompute) {
                           needs.recompute = recompute;
                           return PlanFor(run, needs, run.data.stream.max_length).peak();
                         });
}

// The peak for each level of recomputation, if all layers had the same.
std::vector<MemoryPart> LadderOf(const RunParts& run, ActivationNeeds needs) {
  std::vector<MemoryPart> ladder;
  for (const Recompute level :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    needs.recompute = AllLayers(run, level);
    const MemoryPlan plan = PlanFor(run, needs, run.data.stream.max_length);
    ladder.push_back({NameOf(level), plan.peak(), plan.place});
  }
  return ladder;
}

// Advice for a run that does not fit: the first of these changes with which it would fit into
// `limit` bytes: more recomputation, a smaller micro-batch, shorter sequences.
std::string WhatFits(const RunParts& run, ActivationNeeds needs, std::size_t limit) {
  needs.recompute = AllLayers(run, Recompute::kLayer);
  std::size_t needed = 0;
  const auto fits = [&](std::int64_t train_rows, std::int64_t max_length) {
    needs.train_rows = train_rows;
    needs.train_length = std::min(needs.train_length, max_length);
    needs.eval_rows = EvalRowsOf(run, max_length);
    needed = PlanFor(run, needs, max_length).peak();
    return needed <= limit;
  };
  const auto advice = [&](const std::string& change) {
    return fmt::format("{} would fit: {:.2f} GB", change, static_cast<double>(needed) / 1e9);
  };
  const bool recomputes = run.options.gradient_checkpointing && run.options.recompute == "auto";
  const std::string with = recomputes ? "" : ", gradient_checkpointing true and recompute auto";
  StreamOptions stream = run.data.stream;
  if (!recomputes && fits(needs.train_rows, stream.max_length)) return advice(with.substr(2));
  while (stream.per_device_train_batch_size > 1) {
    stream.per_device_train_batch_size /= 2;
    if (fits(BatchStream(run.data.train, stream).MaxRows(), stream.max_length)) {
      return advice(fmt::format("per_device_train_batch_size {}{}",
                                stream.per_device_train_batch_size, with));
    }
  }
  for (std::int64_t length = stream.max_length / 2; length >= kShortest; length /= 2) {
    if (fits(std::min(length, needs.train_rows), length)) {
      return advice(fmt::format("per_device_train_batch_size 1, max_length {}{}", length, with));
    }
  }
  return fmt::format(
      "neither a smaller per_device_train_batch_size nor a max_length of {} would fit: {:.2f} GB; "
      "a smaller lora_r, a smaller model or more memory is needed",
      kShortest, static_cast<double>(needed) / 1e9);
}

}  // namespace

FittedRun FitMemory(const RunParts& run) {
  const std::int64_t max_length = run.data.stream.max_length;
  FittedRun fitted;
  fitted.positions = PositionsOf(run, max_length);
  fitted.needs = {
      .train_rows = BatchStream(run.data.train, run.data.stream).MaxRows(),
      .train_length = std::min<std::int64_t>(run.data.train.report().longest, max_length),
      .eval_rows = EvalRowsOf(run, max_length),
      .recompute = {}};
  fitted.needs.recompute = RecomputeOf(run, fitted.needs);
  fitted.plan = PlanFor(run, fitted.needs, max_length);
  fitted.plan.recompute = DescribeRecompute(fitted.needs.recompute);
  fitted.plan.ladder = LadderOf(run, fitted.needs);
  fitted.plan.shortage =
      MemoryShortage(fitted.plan, run.options.max_memory, run.backend.memory(),
                     [&](std::size_t limit) { return WhatFits(run, fitted.needs, limit); });
  return fitted;
}

}  // namespace qlora
