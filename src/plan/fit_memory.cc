#include "plan/fit_memory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/printable.h"
#include "data/mismatched_rows.h"
#include "inference/dataset_evaluation.h"
#include "step/optimizer.h"

namespace qlora {
namespace {

// The fraction of free memory that a run leaves to others when max_memory is not set.
constexpr double kSpareMemory = 0.1;

// The smallest max_length that is suggested for a run that does not fit.
constexpr std::int64_t kShortest = 128;

// Positions of the longest sequence when samples are cut to max_length tokens.
std::int64_t PositionsOf(const RunParts& run, std::int64_t max_length) {
  const std::int64_t longest = std::max({run.data.longest, run.data.held_out_longest,
                                         run.data.measured_largest, run.data.anchor_longest});
  return std::max(std::min(longest, max_length), run.prompts.capacity);
}

// Rows of the largest pass of an evaluation or of samples.
std::int64_t EvalRowsOf(const RunParts& run, std::int64_t max_length) {
  const DataExtent& data = run.data;
  const bool is_whole = data.held_out_largest > data.held_out_longest;
  const std::int64_t largest =
      is_whole ? data.held_out_largest : std::min(data.held_out_longest, max_length);
  const std::int64_t held_out = largest > 0 ? EvalRows(largest) : 0;
  const std::int64_t measured = data.measured_largest > 0 ? EvalRows(data.measured_largest) : 0;
  return std::max({held_out, measured, run.prompts.rows});
}

void AddUnfolded(const DataExtent& data, ActivationNeeds& needs) {
  needs.train_unfolded = UnfoldedRows(needs.train_rows, data.unfolding);
  needs.eval_unfolded =
      UnfoldedRows(needs.eval_rows, std::max(data.unfolding, data.held_out_unfolding));
}

std::vector<Recompute> AllLayers(const RunParts& run, Recompute level) {
  return std::vector<Recompute>(run.config.num_hidden_layers, level);
}

MemoryPlan PlanFor(const RunParts& run, const OptimizerType& optimizer,
                   const ActivationNeeds& needs, std::int64_t max_length) {
  MemoryPlan plan =
      PlanMemory(run.backend, run.config, run.adapter, run.precision, run.weights, needs,
                 Optimizer::Bytes(optimizer, run.adapter, run.backend.memory()));
  const std::size_t sums = GradientTree::Bytes(run.place, run.parts, run.adapter.parameters());
  if (sums > 0) plan.Add({"sums of gradients", sums});
  plan.Add({"rotary tables",
            RopeTables::Bytes(run.config, run.precision.wide, PositionsOf(run, max_length))});
  if (!run.prompts.ids.empty()) {
    plan.Add({"keys and values of samples", run.prompts.CacheBytes(run.config, run.precision)});
  }
  return plan;
}

// With the optimizer and the lengths of the run.
MemoryPlan PlanFor(const RunParts& run, const ActivationNeeds& needs) {
  return PlanFor(run, OptimizerOf(run.options), needs, run.data.stream.max_length);
}

bool ChoosesRecompute(const RunParts& run) {
  return run.options.gradient_checkpointing && run.options.recompute == "auto";
}

// The least that layers recompute.
std::vector<Recompute> LeastRecompute(const RunParts& run) {
  if (!run.options.gradient_checkpointing || run.options.recompute == "auto") {
    return AllLayers(run, Recompute::kNone);
  }
  return AllLayers(run, ParseRecompute(run.options.recompute));
}

// The choice of recomputation for each layer, with which the run fits into `limit` bytes if it can.
std::vector<Recompute> RecomputeOf(const RunParts& run, ActivationNeeds needs, std::size_t limit) {
  if (!ChoosesRecompute(run)) return LeastRecompute(run);
  return ChooseRecompute(run.config.num_hidden_layers, limit,
                         [&](const std::vector<Recompute>& recompute) {
                           needs.recompute = recompute;
                           return PlanFor(run, needs).peak();
                         });
}

// The peak for each level of recomputation, if all layers had the same.
std::vector<MemoryPart> LadderOf(const RunParts& run, ActivationNeeds needs) {
  std::vector<MemoryPart> ladder;
  for (const Recompute level :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    needs.recompute = AllLayers(run, level);
    ladder.push_back({NameOf(level), PlanFor(run, needs).peak()});
  }
  return ladder;
}

// The name of an optimizer with the same rule and less memory; "" where no optimizer needs less.
// Paged moments have the same values.
std::string SmallerOptimizer(const TrainOptions& options) {
  const OptimizerType type = OptimizerOf(options);
  if (type.rule == UpdateRule::kAdamW && !type.paged) {
    return type.eight_bit ? "paged_adamw_8bit" : "paged_adamw";
  }
  return type.rule == UpdateRule::kLion && !type.eight_bit ? "lion_8bit" : "";
}

// The options of a run that decide its memory, as they are or changed.
struct Sizes {
  std::int64_t batch_size = 1;  // per_device_train_batch_size
  std::int64_t max_length = 0;
  std::string optim;
  bool recomputes = false;  // gradient_checkpointing true and recompute auto
};

Sizes SizesOf(const RunParts& run) {
  return {.batch_size = run.data.stream.per_device_train_batch_size,
          .max_length = run.data.stream.max_length,
          .optim = run.options.optim,
          .recomputes = ChoosesRecompute(run)};
}

// The least memory of the run with other sizes.
MemoryPlan PlanFor(const RunParts& run, ActivationNeeds needs, const Sizes& sizes) {
  StreamOptions stream = run.data.stream;
  stream.per_device_train_batch_size = sizes.batch_size;
  needs.train_rows = run.data.max_rows(stream);
  if (run.data.unfolding == 1) {
    needs.train_rows = std::min(needs.train_rows, sizes.batch_size * sizes.max_length);
  }
  needs.train_length = std::min(needs.train_length, sizes.max_length);
  needs.eval_rows = EvalRowsOf(run, sizes.max_length);
  AddUnfolded(run.data, needs);
  needs.recompute = sizes.recomputes ? AllLayers(run, Recompute::kLayer) : LeastRecompute(run);
  OptimizerType optimizer = ParseOptimizer(sizes.optim);
  optimizer.momentum = OptimizerOf(run.options).momentum;
  return PlanFor(run, optimizer, needs, sizes.max_length);
}

using FitsFn = std::function<bool(const Sizes& sizes)>;

// Reduces sizes until they fit, each on top of the ones before: more recomputation, a smaller
// micro-batch, a smaller optimizer, shorter sequences. False when nothing fits.
bool Reduce(const RunParts& run, const FitsFn& fits, Sizes& sizes) {
  if (!sizes.recomputes) {
    sizes.recomputes = true;
    if (fits(sizes)) return true;
  }
  while (sizes.batch_size > 1) {
    sizes.batch_size /= 2;
    if (fits(sizes)) return true;
  }
  if (const std::string optim = SmallerOptimizer(run.options); !optim.empty()) {
    sizes.optim = optim;
    if (fits(sizes)) return true;
  }
  while (sizes.max_length / 2 >= kShortest) {
    sizes.max_length /= 2;
    if (fits(sizes)) return true;
  }
  return false;
}

// Gives each size that need not be smaller its value in the run.
void TakeBack(const Sizes& of_run, const FitsFn& fits, Sizes& sizes) {
  const auto take_back = [&](auto member) {
    Sizes larger = sizes;
    larger.*member = of_run.*member;
    if (fits(larger)) sizes = larger;
  };
  take_back(&Sizes::optim);
  take_back(&Sizes::recomputes);
  take_back(&Sizes::batch_size);
}

// "per_device_train_batch_size 1, optim paged_adamw": the sizes that differ from those of the run.
std::string DescribeChange(const Sizes& of_run, const Sizes& sizes) {
  std::vector<std::string> changes;
  if (sizes.batch_size != of_run.batch_size) {
    changes.push_back(fmt::format("per_device_train_batch_size {}", sizes.batch_size));
  }
  if (sizes.max_length != of_run.max_length) {
    changes.push_back(fmt::format("max_length {}", sizes.max_length));
  }
  if (sizes.optim != of_run.optim) changes.push_back("optim " + sizes.optim);
  if (sizes.recomputes != of_run.recomputes) {
    changes.emplace_back("gradient_checkpointing true and recompute auto");
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

// Advice for a run that does not fit: the changes with which it would fit into `limit` bytes, and
// none that is not needed.
std::string WhatFits(const RunParts& run, const ActivationNeeds& needs, std::size_t limit) {
  const Sizes of_run = SizesOf(run);
  Sizes sizes = of_run;
  const FitsFn fits = [&](const Sizes& tried) {
    return PlanFor(run, needs, tried).peak() <= limit;
  };
  const bool found = Reduce(run, fits, sizes);
  if (found) TakeBack(of_run, fits, sizes);
  const MemoryPlan plan = PlanFor(run, needs, sizes);
  const std::string change = DescribeChange(of_run, sizes);
  if (found) return fmt::format("{} would fit: {}", change, FormatBytes(plan.peak()));
  const bool evaluates = plan.eval_peak == plan.peak() && plan.train_peak < plan.peak();
  const std::string tried =
      change.empty()
          ? ""
          : fmt::format("{} would not fit either: {}{}; ", change, FormatBytes(plan.peak()),
                        evaluates ? " in evaluations or samples (a run without them "
                                    "needs less)"
                                  : "");
  return tried + "a smaller lora_r, a smaller model or more memory is needed";
}

// Pairs are measured as they are, answers with labels behind other prompts too.
std::int64_t MeasuredLargest(const RunData& data) {
  std::int64_t largest = 0;
  for (const Dataset* dataset : {&data.train, data.held_out ? &*data.held_out : nullptr}) {
    if (dataset == nullptr || data.form == PreferenceForm::kNone) continue;
    largest = std::max<std::int64_t>(largest, dataset->report().largest);
    if (data.form != PreferenceForm::kLabels) continue;
    largest = std::max(largest, LongestMismatched(*dataset, data.stream.max_length));
  }
  return largest;
}

}  // namespace

DataExtent ExtentOf(const RunData& data) {
  DataExtent extent = {.longest = data.train.report().longest,
                       .unfolding = data.train.report().unfolding,
                       .measured_largest = MeasuredLargest(data),
                       .stream = data.stream,
                       .max_rows = [&data](const StreamOptions& stream) {
                         return BatchStream(data.train, stream).MaxRows();
                       }};
  if (data.anchors) {
    extent.anchor_longest = data.anchors->report().longest;
    extent.anchor_rows = BatchStream(*data.anchors, data.anchor_stream).MaxRows();
  }
  for (const std::optional<Dataset>* part : {&data.held_out, &data.calibration}) {
    if (!*part) continue;
    const DataReport& report = (*part)->report();
    extent.held_out_longest = std::max<std::int64_t>(extent.held_out_longest, report.longest);
    extent.held_out_largest = std::max<std::int64_t>(extent.held_out_largest, report.largest);
    extent.held_out_unfolding = std::max(extent.held_out_unfolding, report.unfolding);
  }
  return extent;
}

FittedRun FitMemory(const RunParts& run) {
  const std::int64_t max_length = run.data.stream.max_length;
  FittedRun fitted;
  fitted.positions = PositionsOf(run, max_length);
  fitted.needs = {
      .train_rows = run.data.max_rows(run.data.stream),
      .train_length = std::min(std::max(run.data.longest, run.data.anchor_longest), max_length),
      .eval_rows = EvalRowsOf(run, max_length),
      .in_flight = run.place.in_flight(),
      .recompute = {},
      .anchor_rows = run.data.anchor_rows,
      .writes_samples = !run.prompts.ids.empty()};
  AddUnfolded(run.data, fitted.needs);
  const Memory& memory = run.backend.memory();
  const int sharers = run.place.of_host;
  const std::size_t limit = MemoryLimit(run.options.max_memory, kSpareMemory, memory, sharers);
  fitted.needs.recompute = RecomputeOf(run, fitted.needs, limit);
  fitted.plan = PlanFor(run, fitted.needs);
  fitted.plan.recompute = DescribeRecompute(fitted.needs.recompute);
  fitted.plan.ladder = LadderOf(run, fitted.needs);
  fitted.plan.shortage =
      MemoryShortage(fitted.plan, run.options.max_memory, memory, sharers,
                     [&](std::size_t most) { return WhatFits(run, fitted.needs, most); });
  return fitted;
}

}  // namespace qlora
