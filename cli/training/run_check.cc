#include "training/run_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "command/errors.h"
#include "command/model_loading.h"
#include "data/sample_display.h"
#include "plan/plan_json.h"
#include "qlora/error.h"
#include "qlora/quantized_base.h"
#include "qlora/tasks.h"
#include "qlora/train.h"
#include "report/dashboard.h"
#include "terminal/terminal.h"
#include "terminal/text_wrap.h"

namespace qlora {
namespace {

std::string FormatShape(const ShapePlan& plan) {
  // Small models would be "0.00 billion".
  const bool is_large = plan.parameters >= 100'000'000;
  return fmt::format(
      "model: {:.2f} {} parameters; shape from {}{}\n"
      "data: none given; every sequence is taken to have {} tokens, a micro-batch {}\n{}\n{}{}\n",
      static_cast<double>(plan.parameters) / (is_large ? 1e9 : 1e6),
      is_large ? "billion" : "million", plan.model,
      plan.has_weights ? "" : ", weights taken to be in " + plan.weight_types, plan.length,
      plan.rows, FormatMemory(plan.memory), FormatRanks(plan.ranks), FormatDisk(plan.disk));
}

}  // namespace

std::string FormatInt8Gain(const Int8Gain& gain) {
  return fmt::format(
      "products with quantized weights {:.1f} times as fast as with compute_dtype auto, of "
      "gradients {:.1f} times; the rest of a step is no faster",
      gain.forward, gain.backward);
}

OrderedJson Int8GainToJson(const Int8Gain& gain) {
  return {{"forward", gain.forward}, {"backward", gain.backward}};
}

std::string FormatLayout(const TrainPlan& plan) {
  const bool samples = !plan.options.sample_prompts.empty();
  const char* of_samples = plan.options.sample_raw ? "; sample_prompts as they are"
                                                   : ", also of sample_prompts (--sample-raw: not)";
  return fmt::format("prompt layout: {}{}", plan.prompt_layout, samples ? of_samples : "");
}

std::string FormatNewSchedule(const TrainPlan& plan) {
  if (!plan.resume || plan.resume->total_steps == 0) return "";
  const std::int64_t before = plan.resume->total_steps;
  // Other epochs or data on resume move the end of the schedule, and with it the rate of every step
  // that is left.
  if (before == plan.total_steps) return "";
  return fmt::format(
      "steps: {} before, {} now; from step {} on, the learning rate follows the {} schedule of {} "
      "steps (warm-up {})",
      before, plan.total_steps, plan.resume->step + 1, plan.options.lr_scheduler_type,
      plan.total_steps, plan.warmup_steps);
}

std::string FormatMemory(const MemoryPlan& plan) {
  std::size_t width = 4;
  // Names differ between runs, so the column is measured.
  for (const MemoryPart& part : plan.parts) width = std::max(width, part.name.size());
  const auto line = [&](const std::string& name, std::size_t bytes) {
    return fmt::format("  {:<{}}  {:>10}\n", name, width, FormatBytes(bytes));
  };
  std::string out = "memory plan\n";
  for (const MemoryPart& part : plan.parts) out += line(part.name, part.bytes);
  out += line("peak", plan.peak());
  // Each rung is the peak with another way of keeping activations, so that the user sees the cost
  // and the saving of --recompute.
  out += fmt::format(
      "    train {}, eval {}, save {}\n  activations recomputed to save memory (--recompute): {}",
      FormatBytes(plan.train_peak), FormatBytes(plan.eval_peak), FormatBytes(plan.save_peak),
      plan.recompute);
  for (const MemoryPart& rung : plan.ladder) {
    out += fmt::format("{} {} {}",
                       &rung == &plan.ladder.front() ? "\n    peak memory with each choice:" : ",",
                       rung.name, FormatBytes(rung.bytes));
  }
  return out;
}

std::string FormatDisk(const DiskPlan& disk) {
  return fmt::format("disk: {} needed in {} (adapter {}, {} {} of {}), {} free",
                     FormatBytes(disk.needed), disk.folder, FormatBytes(disk.adapter),
                     disk.checkpoints, disk.checkpoints == 1 ? "checkpoint" : "checkpoints",
                     FormatBytes(disk.checkpoint), FormatBytes(disk.free));
}

// One line with its end, or nothing for a run of one process.
std::string FormatRanks(const RankPlan& plan) {
  if (plan.ranks == 1) return "";
  std::string stages;
  for (const StagePlan& stage : plan.of_stages) {
    if (plan.stages == 1) break;
    stages += fmt::format("  layers {:>3} to {:>3}  {:>10}\n", stage.first_layer,
                          stage.first_layer + stage.layers - 1, FormatBytes(stage.memory));
  }
  if (plan.stages > 1) {
    stages = fmt::format(
        "stages: {} in each of {} replicas; they wait for one another in {:.0f} % of a step\n{}",
        plan.stages, plan.ranks / plan.stages, 100 * plan.idle_share, stages);
  }
  return stages +
         fmt::format(
             "ranks: {}; a step has {} micro-batches, at most {} for a rank, and each rank "
             "sends {} for it\n",
             plan.ranks, plan.micro_batches, plan.micro_batches_of_rank,
             FormatBytes(plan.bytes_sent));
}

std::string FormatSteps(const TrainPlan& plan, const TimeEstimate& time) {
  const std::string steps = fmt::format("steps: {} (warm-up {}), about {} here", plan.total_steps,
                                        plan.warmup_steps, FormatDuration(time.seconds));
  if (!time.int8) return steps;
  return fmt::format("{}; int8 {}, int8_backward {}", steps, FormatDuration(*time.int8),
                     FormatDuration(*time.int8_backward));
}

std::string FormatPlan(const TrainPlan& plan, const TimeEstimate& time) {
  const std::string schedule = FormatNewSchedule(plan);
  return fmt::format("{}{}\n{}\n{}{}\n{}\n{}", RenderTrainingData(plan.data), FormatLayout(plan),
                     FormatMemory(plan.memory), FormatRanks(plan.ranks), FormatDisk(plan.disk),
                     FormatSteps(plan, time), schedule.empty() ? "" : schedule + "\n");
}

namespace {

// The answer to a check, for PrintCheck.
struct Finding {
  std::string text;
  OrderedJson json;
  std::vector<std::string> warnings;
  std::function<void()> refuse;  // throws the reason why `train` would refuse the run, if any
};

// Calls find and prints the finding, as text or as one JSON object with "ok", then the defect:
// whoever must change something sees the parts that do not fit.
void PrintCheck(const Console& console, bool json, std::string_view checked,
                const std::function<Finding()>& find) {
  OrderedJson found = OrderedJson::object();
  try {
    const Finding finding = find();
    if (!json) console.out << Fitted(console.out_style, Printable(finding.text)) << std::flush;
    for (const std::string& warning : finding.warnings) Say(console, "warning: " + warning);
    found = finding.json;
    finding.refuse();
  } catch (const Error& error) {
    if (!json) throw;
    ThrowWithJson(console, error, found);
  }
  if (json) {
    PrintSuccess(console, found);
  } else {
    console.out << fmt::format("ok: {}; nothing was written\n", checked);
  }
}

Finding FindShape(const TrainOptions& options, int world_size) {
  Context context(ThreadCount(options.threads));
  const ShapePlan plan = PlanShape(context, options, world_size);
  std::string text = FormatShape(plan);
  OrderedJson json = PlanToJson(plan);
  if (options.load_in_4bit && options.compute_dtype != "int8") {
    const Int8Gain gain = MeasureInt8Gain(context);
    text += fmt::format("compute_dtype int8: {}\n", FormatInt8Gain(gain));
    json["int8_speedup"] = Int8GainToJson(gain);
  }
  return {std::move(text), std::move(json), plan.warnings, [plan] { CheckPlan(plan); }};
}

Finding FindPlan(const Console& console, const TrainOptions& options, PlanPurpose purpose,
                 int world_size) {
  Context context(ThreadCount(options.threads));
  StatusLine line(console.err, console.style);
  const TrainPlan plan = PlanTraining(
      context, options, purpose,
      [&](std::int64_t done, std::int64_t total) { ShowReading(line, done, total); }, world_size);
  const TimeEstimate time = EstimateTime(context, plan);
  OrderedJson json = PlanToJson(plan);
  json["estimated_seconds"] = time.seconds;
  if (time.int8) {
    json["estimated_seconds_int8"] = *time.int8;
    json["estimated_seconds_int8_backward"] = *time.int8_backward;
  }
  return {FormatPlan(plan, time), std::move(json), plan.warnings, [plan] { CheckPlan(plan); }};
}

}  // namespace

void CheckRun(const Console& console, TrainSettings settings, PlanPurpose purpose, int world_size,
              bool json) {
  const TrainOptions& options = settings.options;
  if (!settings.gate.empty()) ReadGateSuite(settings.gate);
  if (options.data.dataset.empty()) {
    PrintCheck(console, json, "options, memory and disk space",
               [&] { return FindShape(options, world_size); });
    return;
  }
  NoteOtherBase(options.model_name_or_path, {options.adapter}, console);
  // A port that is taken would end the run after the model was loaded.
  if (settings.dashboard != 0) CheckPort(settings.dashboard);
  // Checks the folder of save_quantized, and takes its checkpoint as the base if there is one.
  FindQuantizedBase(settings.save_quantized, settings.options);
  PrintCheck(console, json, "configuration, model, data, memory and disk space",
             [&] { return FindPlan(console, options, purpose, world_size); });
}

}  // namespace qlora
