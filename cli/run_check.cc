#include "run_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/sample_display.h"
#include "model_loading.h"
#include "qlora/error.h"
#include "quantized_base.h"

namespace qlora {
namespace {

OrderedJson MemoryToJson(const MemoryPlan& plan) {
  OrderedJson parts = OrderedJson::object();
  for (const MemoryPart& part : plan.parts) parts[part.name] = part.bytes;
  OrderedJson ladder = OrderedJson::object();
  for (const MemoryPart& rung : plan.ladder) ladder[rung.name] = rung.bytes;
  return {{"parts", parts},
          {"place", plan.place == MemoryPlace::kHost ? "host" : "device"},
          {"host", plan.host},
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

OrderedJson Failure(const Error& error) {
  return {{"ok", false}, {"exit_code", static_cast<int>(error.code())}, {"error", error.what()}};
}

}  // namespace

OrderedJson PlanToJson(const TrainPlan& plan) {
  const OrderedJson memory = MemoryToJson(plan.memory);
  OrderedJson json = {{"steps", plan.total_steps},
                      {"warmup_steps", plan.warmup_steps},
                      {"data", TrainingDataToJson(plan.data)},
                      {"memory", memory},
                      {"disk", DiskToJson(plan.disk)},
                      {"warnings", plan.warnings}};
  json.update(memory);  // scripts of `plan` know these keys at the top, those of `validate` below
  return json;
}

std::string FormatMemory(const MemoryPlan& plan) {
  std::size_t width = 4;
  for (const MemoryPart& part : plan.parts) width = std::max(width, part.name.size());
  std::string out = "memory plan\n";
  for (const MemoryPart& part : plan.parts) {
    out += fmt::format("  {:<{}}  {:>10}{}\n", part.name, width, FormatBytes(part.bytes),
                       part.place == plan.place ? "" : "  (host)");
  }
  if (plan.place == MemoryPlace::kDevice) {
    out += fmt::format("  {:<{}}  {:>10}\n", "host", width, FormatBytes(plan.host));
  }
  out += fmt::format("  {:<{}}  {:>10}  (train {}, eval {}, save {})", "peak", width,
                     FormatBytes(plan.peak()), FormatBytes(plan.train_peak),
                     FormatBytes(plan.eval_peak), FormatBytes(plan.save_peak));
  out += fmt::format("\n  recomputed: {}; the peak with", plan.recompute);
  for (const MemoryPart& rung : plan.ladder) {
    out += fmt::format(" {} {}{}", rung.name, FormatBytes(rung.bytes),
                       &rung == &plan.ladder.back() ? "" : ",");
  }
  return out;
}

std::string FormatDisk(const DiskPlan& disk) {
  return fmt::format("disk: {} needed in {} (adapter {}, {} {} of {}), {} free",
                     FormatBytes(disk.needed), disk.folder, FormatBytes(disk.adapter),
                     disk.checkpoints, disk.checkpoints == 1 ? "checkpoint" : "checkpoints",
                     FormatBytes(disk.checkpoint), FormatBytes(disk.free));
}

std::string FormatPlan(const TrainPlan& plan) {
  return fmt::format("{}{}\n{}\nsteps: {} (warm-up {})\n", RenderTrainingData(plan.data),
                     FormatMemory(plan.memory), FormatDisk(plan.disk), plan.total_steps,
                     plan.warmup_steps);
}

void CheckRun(const Console& console, TrainSettings settings, bool json) {
  NoteOtherBase(settings.options.model_name_or_path, settings.options.adapter, console);
  FindQuantizedBase(settings);
  OrderedJson found = OrderedJson::object();
  try {
    Context context(ThreadCount(settings.options.threads));
    const TrainPlan plan = PlanTraining(context, settings.options);
    for (const std::string& warning : plan.warnings) console.err << "warning: " << warning << '\n';
    if (!json) console.out << FormatPlan(plan);
    found = PlanToJson(plan);
    CheckPlan(plan);
  } catch (const Error& error) {
    OrderedJson failure = Failure(error);
    failure.update(found);
    if (json) PrintJson(console.out, failure);
    throw;
  }
  if (json) {
    OrderedJson success = {{"ok", true}};
    success.update(found);
    PrintJson(console.out, success);
  } else {
    console.out << "ok: configuration, model, data, memory and disk space; nothing was written\n";
  }
}

}  // namespace qlora
