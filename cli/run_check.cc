#include "run_check.h"

#include <fmt/format.h>

#include "qlora/error.h"
#include "train_display.h"

namespace qlora {
namespace {

// Keeps what the plan reports.
class Findings : public TrainObserver {
 public:
  explicit Findings(std::ostream& err) : err_(err) {}

  void OnPlan(const MemoryPlan& plan) override { memory = plan; }
  void OnData(const std::string& summary) override { data = summary; }
  void OnWarning(const std::string& text) override { err_ << "warning: " << text << '\n'; }

  MemoryPlan memory;
  std::string data;

 private:
  std::ostream& err_;
};

Json DiskToJson(const DiskPlan& disk) {
  return {{"folder", disk.folder},         {"adapter", disk.adapter},
          {"checkpoint", disk.checkpoint}, {"checkpoints", disk.checkpoints},
          {"needed", disk.needed},         {"free", disk.free}};
}

void PrintText(const Console& console, const Findings& findings) {
  console.out << findings.data;
  if (!findings.memory.parts.empty()) console.out << FormatPlan(findings.memory) << '\n';
}

}  // namespace

Json PlanToJson(const MemoryPlan& plan) {
  Json parts = Json::object();
  for (const MemoryPart& part : plan.parts) parts[part.name] = part.bytes;
  Json ladder = Json::object();
  for (const MemoryPart& rung : plan.ladder) ladder[rung.name] = rung.bytes;
  return {{"parts", parts},
          {"recompute", plan.recompute},
          {"ladder", ladder},
          {"train_peak", plan.train_peak},
          {"eval_peak", plan.eval_peak},
          {"save_peak", plan.save_peak},
          {"peak", plan.peak()}};
}

std::string FormatDisk(const DiskPlan& disk) {
  return fmt::format("disk: {} needed in {} (adapter {}, {} {} of {}), {} free",
                     FormatBytes(disk.needed), disk.folder, FormatBytes(disk.adapter),
                     disk.checkpoints, disk.checkpoints == 1 ? "checkpoint" : "checkpoints",
                     FormatBytes(disk.checkpoint), FormatBytes(disk.free));
}

void ShowPlan(const Console& console, const TrainOptions& options, bool json) {
  Context context(ThreadCount(options.threads));
  Findings findings(console.err);
  const auto print = [&] {
    if (!json) {
      PrintText(console, findings);
    } else if (!findings.memory.parts.empty()) {
      PrintJson(console.out, PlanToJson(findings.memory));
    }
  };
  try {
    PlanTraining(context, options, findings);
  } catch (const Error&) {
    print();
    throw;
  }
  print();
}

void CheckRun(const Console& console, const TrainOptions& options, bool json) {
  Context context(ThreadCount(options.threads));
  Findings findings(console.err);
  try {
    const RunPlan plan = PlanTraining(context, options, findings);
    if (json) {
      PrintJson(console.out, {{"ok", true},
                              {"steps", plan.total_steps},
                              {"warmup_steps", plan.warmup_steps},
                              {"memory", PlanToJson(findings.memory)},
                              {"disk", DiskToJson(plan.disk)}});
      return;
    }
    PrintText(console, findings);
    console.out << FormatDisk(plan.disk) << '\n'
                << fmt::format(
                       "steps: {} (warm-up {})\n"
                       "ok: configuration, model, data, memory and disk space; nothing was "
                       "written\n",
                       plan.total_steps, plan.warmup_steps);
  } catch (const Error& error) {
    if (json) {
      PrintJson(
          console.out,
          {{"ok", false}, {"exit_code", static_cast<int>(error.code())}, {"error", error.what()}});
    } else {
      PrintText(console, findings);
    }
    throw;
  }
}

}  // namespace qlora
