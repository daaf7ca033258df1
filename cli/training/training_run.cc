#include "training/training_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "dist/together.h"
#include "io/json.h"
#include "log/rank_times.h"
#include "qlora/error.h"
#include "qlora/quantized_base.h"
#include "qlora/tasks.h"
#include "report/dashboard.h"
#include "tasks/gate_check.h"
#include "terminal/interrupt.h"
#include "terminal/progress.h"
#include "terminal/terminal.h"
#include "terminal/text_wrap.h"
#include "training/generate_command.h"
#include "training/recorded_paths.h"
#include "training/run_check.h"
#include "training/stall_watch.h"
#include "training/train_display.h"

namespace qlora {
namespace {

TrainPlan PlanUntilInterrupted(Context& context, const Console& console,
                               const TrainOptions& options) {
  // Nothing of the run is written before planning ends.
  const InterruptGuard guard;
  StatusLine line(console.err, console.style);
  TrainPlan plan = PlanTraining(context, options, PlanPurpose::kTraining,
                                [&](std::int64_t done, std::int64_t total) {
                                  guard.ThrowIfRequested();
                                  ShowReading(line, done, total);
                                });
  guard.ThrowIfRequested();
  return plan;
}

// With progress and Ctrl+C as `quantize`.
void MakeBase(Context& context, const Console& console, const TrainSettings& settings) {
  const std::string& folder = settings.save_quantized;
  const bool interrupted = RunWithProgress(console, "quantizing", [&](const ProgressFn& progress) {
    MakeQuantizedBase(context, folder, settings.options, progress);
  });
  console.err << fmt::format("quantized base written to {}\n", folder);
  if (interrupted) {
    // A signal during the last tensor: the work is done, but the user asked to stop.
    throw Interrupted{fmt::format(
        "the quantized base in {} is complete; run the same command to start again with it",
        folder)};
  }
}

// Returns the plan of the run, on the quantized base of save_quantized where that is set. Faults of
// the run are reported before the base is made.
TrainPlan PlanRun(Context& context, const Console& console, TrainSettings& settings) {
  Communicator& ranks = context.communicator();
  const TrainOptions given = settings.options;
  bool make_base = false;
  Together(ranks,
           [&] { make_base = FindQuantizedBase(settings.save_quantized, settings.options); });
  make_base = AnyRank(ranks, make_base);
  // Where one rank has to make it, all plan on the model that it is made of.
  if (make_base) settings.options = given;
  TrainPlan plan = PlanUntilInterrupted(context, console, settings.options);
  if (!make_base) return plan;
  Together(ranks, [&] { CheckPlan(plan); });
  // In turn: ranks whose disk has no base make one, and those of a shared disk find it.
  for (int rank = 0; rank < ranks.size(); ++rank) {
    Together(ranks, [&] {
      TrainOptions options = settings.options;
      if (rank == ranks.rank() && FindQuantizedBase(settings.save_quantized, options)) {
        MakeBase(context, console, settings);
      }
    });
  }
  return PlanOnQuantizedBase(context, plan, settings.save_quantized);
}

// Adds the saved state to a failure in the middle of a run.
RunSummary TrainWithAdvice(Context& context, const TrainPlan& plan, TrainDisplay& display) {
  try {
    return Train(context, plan, display);
  } catch (const Error& error) {
    // Wrong input and lack of memory would fail again on resume; a full disk or a diverged loss
    // need not. A folder that was renamed took the checkpoint along, and another one may have the
    // name.
    if (error.code() != ErrorCode::kRuntime || !display.HasLastCheckpoint()) throw;
    throw Error(error.code(),
                fmt::format("{}\nthe last checkpoint is {}; to resume from it: {}", error.what(),
                            display.last_checkpoint(), ResumeCommand(plan.options)));
  }
}

// Names the hosts whose ranks compute with fewer threads than others, which wait for them.
void NoteFewerThreads(const Console& console, Communicator& ranks, int threads) {
  if (ranks.is_alone()) return;
  std::vector<int> counts(static_cast<std::size_t>(ranks.size()));
  ranks.Gather(std::as_bytes(std::span(&threads, 1)), std::as_writable_bytes(std::span(counts)));
  const std::vector<std::string> hosts = GatherTexts(ranks, ranks.host());
  const int most = *std::max_element(counts.begin(), counts.end());
  std::set<std::string> fewer;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (counts[rank] < most) {
      fewer.insert(fmt::format("{} ({})", hosts[rank], counts[rank]));
    }
  }
  if (fewer.empty()) return;
  Say(console, fmt::format("note: ranks have up to {} threads, and wait for those with fewer: {}",
                           most, fmt::join(fewer, ", ")));
}

// Says which step the adapter is of, or that an earlier one was better; "" where the last one is
// the best, or nothing was evaluated.
std::string BestToText(const TrainOptions& options, const RunSummary& summary) {
  if (summary.best_step < 0 || summary.best_step == summary.steps) return "";
  if (options.load_best_model_at_end) {
    return fmt::format("the adapter is that of step {} of {}, the best evaluation by {}\n",
                       summary.best_step, summary.steps, options.metric_for_best_model);
  }
  return fmt::format(
      "the best evaluation by {} was at step {} of {}: --load_best_model_at_end keeps the adapter "
      "of that step\n",
      options.metric_for_best_model, summary.best_step, summary.steps);
}

// Returns the values of PrintSummary without the rounding.
OrderedJson ToJson(const RunSummary& summary) {
  const std::int64_t steps = summary.steps - summary.resumed_step;
  OrderedJson json = {
      {"adapter_dir", summary.adapter_dir},
      {"train_runtime", summary.seconds},
      {"train_steps", summary.steps},
      {"resumed_step", summary.resumed_step},
      {"train_steps_per_second",
       summary.seconds > 0 ? static_cast<double>(steps) / summary.seconds : 0},
      {"train_loss", summary.mean_loss},
      {"trained_tokens", summary.tokens},
      {"peak_memory_bytes", summary.peak_memory_bytes},
      {"skipped_steps", summary.skipped_steps},
      {"stopped_early", summary.stopped_early},
      {"best_step", summary.best_step < 0 ? OrderedJson() : OrderedJson(summary.best_step)},
      {"interrupted", summary.interrupted}};
  if (summary.ranks.empty()) return json;
  const RankShares shares = SharesOf(summary.ranks);
  json["ranks"] = summary.ranks.size();
  json["computing"] = shares.computing;
  json["waiting"] = shares.waiting;
  json["slowest_rank"] = shares.slowest;
  return json;
}

// Prints the object of a run that ended with another exit code than 0, and what it has come to.
void PrintUnfinished(const Console& console, int code, std::string_view message,
                     const OrderedJson& result) {
  OrderedJson failure = FailureToJson(code, message);
  failure.update(result);
  PrintJson(console.out, failure);
}

// Says where the adapter is, and what can be done with it. Returns the command that tries it.
std::string TellResult(const Console& console, const TrainPlan& plan, const RunSummary& summary,
                       const TrainDisplay& display) {
  const TrainOptions& options = plan.options;
  const bool decides = Exists(std::filesystem::path(summary.adapter_dir) / "decision.json");
  const std::string command =
      decides ? fmt::format("qlora decide {} --adapter {} --request request.json",
                            ShellQuote(plan.options.model_name_or_path),
                            ShellQuote(summary.adapter_dir))
              : GenerateCommand(plan.options.model_name_or_path, summary.adapter_dir, plan.example);
  console.err << fmt::format("adapter saved in {}\nto try it: {}\n",
                             ShellQuote(summary.adapter_dir), command);
  console.err << BestToText(options, summary);
  // Whoever sets max_steps knows how long.
  if (options.max_steps <= 0 && display.StillFalls()) {
    console.err << fmt::format("the loss still falls; to go on: {} --num_train_epochs {:g}\n",
                               ResumeCommand(options), 2 * options.num_train_epochs);
  }
  // A run that goes on may have learned before what there is to learn.
  const std::string flat = summary.resumed_step == 0 ? display.DescribeFlatLoss() : "";
  if (!flat.empty()) {
    console.err << fmt::format(
        "warning: {}; a higher learning_rate (now {:g}) or more epochs may help, and `qlora "
        "inspect` shows what is trained\n",
        flat, options.learning_rate);
  }
  return command;
}

// The run has ended well, and the user knows of it: whatever happens to the gate, the adapter is
// saved. Returns the exit code. result: of the run, for JSON.
int RunGate(const Console& console, const GateSuite& gate, const TrainOptions& options, int threads,
            InterruptGuard& guard, OrderedJson result, bool json) {
  guard.AnswerWith("\nstopping the gate\n");
  const std::string adapter = result.at("adapter_dir").get<std::string>();
  try {
    Context context(threads);
    const int code = CheckGate(
        context, gate, options, adapter, [&] { guard.ThrowIfRequested(); }, console);
    result["gate_passed"] = code == 0;
    if (json && code == 0) PrintSuccess(console, result);
    if (json && code != 0) {
      PrintUnfinished(console, code, "the adapter has lost more than the gate allows", result);
    }
    return code;
  } catch (const Interrupted&) {
    if (json) PrintUnfinished(console, kInterruptedExit, "interrupted", result);
    console.err << fmt::format("interrupted; the adapter in {} is not measured by {}\n",
                               ShellQuote(adapter), gate.path);
    return kInterruptedExit;
  } catch (const Error& error) {
    const Error failed(ErrorCode::kRuntime,
                       fmt::format("the adapter in {} is saved, but not measured by {}: {}",
                                   ShellQuote(adapter), gate.path, error.what()));
    if (json) ThrowWithJson(console, failed, result);
    throw failed;
  }
}

}  // namespace

int RunTraining(const Console& console, Communicator& ranks, TrainSettings& settings, bool json,
                const std::function<void(const TrainPlan&)>& check) {
  const TrainOptions& options = settings.options;
  NoteOtherBase(options.model_name_or_path, {options.adapter}, console);
  const int threads = MakeTogether(ranks, [&] {
    if (settings.ddp_timeout < 0) {
      ThrowInvalidInput("ddp_timeout: expected seconds, or 0, found {}", settings.ddp_timeout);
    }
    return ThreadCount(options.threads);
  });
  std::optional<GateSuite> gate;
  if (!settings.gate.empty()) {
    gate = MakeTogether(ranks, [&] { return ReadGateSuite(settings.gate); });
  }
  Context context(threads, ranks);
  const TrainPlan plan = PlanRun(context, console, settings);
  std::optional<Dashboard> dashboard;
  Together(ranks, [&] {
    // Before the dashboard opens its port and before anything is written.
    check(plan);
    if (settings.dashboard == 0 || !ranks.is_root()) return;
    dashboard.emplace(settings.dashboard, options.output_dir);
    console.err << fmt::format("dashboard: {}\n", dashboard->url());
  });
  // From here on a signal ends training with a checkpoint; while weights are loaded, without one.
  InterruptGuard guard;
  std::optional<StallWatch> watch;
  if (!ranks.is_alone()) watch.emplace(ranks, guard, settings.ddp_timeout, options);
  TrainDisplay display(
      console.err, console.style, options.logging_steps, [&] { return guard.requested(); },
      [&] { guard.ThrowIfRequested(); });
  guard.AnswerWith(
      "\nstopping after this step, with a checkpoint; Ctrl+C again ends now, without one\n");
  display.PrintPlan(plan);
  console.err << FormatRanks(plan.ranks)
              << Fitted(console.style, FormatSteps(plan, EstimateTime(context, plan)) + "\n");
  NoteFewerThreads(console, ranks, context.threads());
  const RunSummary summary = TrainWithAdvice(context, plan, display);
  watch.reset();
  // Also after an interruption, whose steps count.
  display.PrintSummary(summary);
  OrderedJson result = ToJson(summary);
  if (summary.interrupted) {
    result["checkpoint"] = display.last_checkpoint();
    if (json) PrintUnfinished(console, kInterruptedExit, "interrupted", result);
    console.err << fmt::format("interrupted; checkpoint saved in {}\nto resume: {}\n",
                               display.last_checkpoint(), ResumeCommand(options));
    return kInterruptedExit;
  }
  // The adapter is saved all the same; the exit code tells scripts that the run failed.
  if (summary.diverged) {
    ranks.EndTogether();
    const Error error(ErrorCode::kRuntime, summary.divergence);
    if (json) ThrowWithJson(console, error, result);
    throw error;
  }
  result["to_try_it"] = TellResult(console, plan, summary, display);
  if (gate) {
    // What follows is the work of the first rank.
    ranks.EndTogether();
    if (ranks.is_root()) return RunGate(console, *gate, options, threads, guard, result, json);
  }
  if (json) PrintSuccess(console, result);
  return 0;
}

}  // namespace qlora
