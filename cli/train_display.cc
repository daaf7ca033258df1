#include "train_display.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/sample_display.h"
#include "run_check.h"

namespace qlora {
namespace {

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// One line of a terminal, the most important values first: a narrow terminal cuts the end.
std::string LiveText(const StepReport& r) {
  const double share =
      r.total_steps > 0 ? static_cast<double>(r.step) / static_cast<double>(r.total_steps) : 0;
  return fmt::format("{}/{} {} loss {:.4f}  lr {:.2e}  grad {:.3f}  {:.0f} tok/s  {}  ETA {}",
                     r.step, r.total_steps, Bar(share, 20), r.loss, r.learning_rate, r.grad_norm,
                     r.tokens_per_second, FormatBytes(r.memory_bytes),
                     FormatDuration(r.remaining_seconds));
}

}  // namespace

std::string FormatStep(const StepReport& r) {
  return fmt::format(
      "step={}/{} epoch={:.3f} loss={:.4f} grad_norm={:.4f} learning_rate={:.3e} "
      "tokens_per_second={:.0f} memory={:.0f}MiB eta={:.0f}s",
      r.step, r.total_steps, r.epoch, r.loss, r.grad_norm, r.learning_rate, r.tokens_per_second,
      static_cast<double>(r.memory_bytes) / (1 << 20), std::max(r.remaining_seconds, 0.0));
}

void TrainDisplay::OnLoad(std::int64_t done, std::int64_t total) {
  on_load_();
  ShowProgress(line_, "loading", done, total);
  if (done == total) line_.Clear();
}

void TrainDisplay::PrintPlan(const TrainPlan& plan) {
  for (const std::string& warning : plan.warnings) Warn(warning);
  line_.Print(RenderTrainingData(plan.data));
  line_.Print(FormatLayout(plan));
  line_.Print(FormatMemory(plan.memory));
  if (const std::string text = FormatNewSchedule(plan); !text.empty()) line_.Print(text);
}

void TrainDisplay::Warn(const std::string& text) { line_.Print("warning: " + Printable(text)); }

void TrainDisplay::OnResume(const std::string& checkpoint, std::int64_t step,
                            std::int64_t total_steps) {
  line_.Print(fmt::format("resuming from {}: {} of {} steps are done{}", checkpoint, step,
                          total_steps, step == total_steps ? ", nothing is left to train" : ""));
}

void TrainDisplay::OnStep(const StepReport& report) {
  if (report.skipped) {
    Warn(fmt::format("step {} skipped: a NaN or Inf first in {}", report.step, report.bad_tensor));
  }
  if (report.spike) {
    Warn(fmt::format("loss spike at step {}: {:.4f}", report.step, report.loss));
  }
  const bool last = report.step == report.total_steps;
  if (line_.style().live) {
    if (line_.Due() || last) line_.Show(LiveText(report));
  } else if (last || report.step == 1 ||
             (logging_steps_ > 0 && report.step % logging_steps_ == 0)) {
    line_.Print(FormatStep(report));
  }
}

void TrainDisplay::OnEval(std::int64_t step, const EvalReport& report) {
  line_.Print(
      fmt::format("eval step={} eval_loss={:.4f} perplexity={:.3f} token_accuracy={:.4f} tokens={} "
                  "seconds={:.1f}{}",
                  step, report.loss, report.perplexity, report.token_accuracy, report.tokens,
                  report.seconds, report.best ? " best" : ""));
}

void TrainDisplay::OnSample(const SampleReport& report) {
  line_.Print(fmt::format("sample step={} {:?} -> {:?}", report.step, report.prompt, report.text));
}

void TrainDisplay::OnCheckpoint(const std::string& dir) {
  last_checkpoint_ = dir;
  line_.Print(fmt::format("checkpoint {}", dir));
}

void TrainDisplay::PrintSummary(const RunSummary& summary) {
  if (summary.steps == summary.resumed_step) return;
  line_.Print(fmt::format(
      "train_runtime={:.1f}s train_steps={} train_steps_per_second={:.3f} train_loss={:.4f} "
      "trained_tokens={} peak_memory={:.0f}MiB",
      summary.seconds, summary.steps,
      Rate(static_cast<double>(summary.steps - summary.resumed_step), summary.seconds),
      summary.mean_loss, summary.tokens,
      static_cast<double>(summary.peak_memory_bytes) / (1 << 20)));
  if (summary.stopped_early) line_.Print("stopped early: the evaluation has stopped improving");
  if (summary.skipped_steps > 0) {
    line_.Print(fmt::format("skipped_steps={} (NaN or Inf)", summary.skipped_steps));
  }
}

}  // namespace qlora
