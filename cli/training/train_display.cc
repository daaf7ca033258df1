#include "training/train_display.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "data/sample_display.h"
#include "log/rank_times.h"
#include "terminal/decision_table.h"
#include "training/run_check.h"

namespace qlora {
namespace {

// Returns 0 for a run that resumed at its end and took no time.
double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// Nothing where the folder is not there.
std::optional<FolderIdentity> IdentityOf(const std::string& folder) {
  struct stat status = {};
  if (stat(folder.c_str(), &status) != 0) return std::nullopt;
  return FolderIdentity{status.st_dev, status.st_ino};
}

// Returns "  limit 71 %".
std::string ShareOfLimit(const StepReport& r) {
  return fmt::format("  limit {:.0f} %", 100 * r.limit_share);
}

// Returns the line that a logging step leaves in a terminal.
std::string ShortStep(const StepReport& r) {
  return fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  {:.0f} tok/s{}", r.step, r.total_steps,
                     r.loss, r.learning_rate, r.tokens_per_second, ShareOfLimit(r));
}

// Digits behind the point that a metric is shown with.
int DigitsOf(double value) { return std::abs(value) < 1 ? 4 : 3; }

}  // namespace

// Returns key=value pairs, for files and grep; ShortStep and FormatLiveStep are for eyes.
std::string FormatStep(const StepReport& r) {
  return fmt::format(
      "step={}/{} epoch={:.3f} loss={:.4f} grad_norm={:.4f} learning_rate={:.3e} "
      "tokens_per_second={:.0f} limit_share={:.3f} memory={:.0f}MiB eta={:.0f}s",
      r.step, r.total_steps, r.epoch, r.loss, r.grad_norm, r.learning_rate, r.tokens_per_second,
      r.limit_share, static_cast<double>(r.memory_bytes) / (1 << 20),
      std::max(r.remaining_seconds, 0.0));
}

// Returns "45/60 [=========>    ] loss 1.1768  lr 3.53e-04  grad 1.528  6613 tok/s  limit 71 %
// 41.0 MiB  ETA 6.0 s"
std::string FormatLiveStep(const StepReport& r, std::int64_t columns) {
  // A bar of fewer characters shows nothing.
  constexpr std::int64_t kLeastBar = 12;
  constexpr std::int64_t kMostBar = 20;
  enum Part { kLoss, kRate, kNorm, kSpeed, kShare, kMemory, kRemaining, kParts };
  std::array<std::string, kParts> parts = {
      fmt::format(" loss {:.4f}", r.loss),
      fmt::format("  lr {:.2e}", r.learning_rate),
      fmt::format("  grad {:.3f}", r.grad_norm),
      fmt::format("  {:.0f} tok/s", r.tokens_per_second),
      ShareOfLimit(r),
      fmt::format("  {}", FormatBytes(r.memory_bytes)),
      fmt::format("  ETA {}", FormatDuration(r.remaining_seconds)),
  };
  const std::string step = fmt::format("{}/{} ", r.step, r.total_steps);
  const auto room = [&] {
    std::int64_t left = columns - std::ssize(step);
    for (const std::string& part : parts) left -= std::ssize(part);
    return left;
  };
  // Parts are left out in a narrow terminal, the least important first. The loss always stays.
  for (const Part part : {kMemory, kShare, kNorm, kRate, kSpeed, kRemaining}) {
    if (room() < kLeastBar) parts[part].clear();
  }
  const double share =
      r.total_steps > 0 ? static_cast<double>(r.step) / static_cast<double>(r.total_steps) : 0;
  const auto bar = static_cast<int>(std::clamp(room(), kLeastBar, kMostBar));
  return fmt::format("{}{}{}", step, Bar(share, bar), fmt::join(parts, ""));
}

void TrainDisplay::OnLoad(std::int64_t done, std::int64_t total) {
  // Loading is long and has no step at which a signal would be noticed.
  on_load_();
  ShowProgress(line_, "loading", done, total);
  if (done == total) line_.Clear();
}

void TrainDisplay::PrintPlan(const TrainPlan& plan) {
  line_.Print(RenderTrainingData(plan.data));
  line_.Print(FormatLayout(plan));
  line_.Print(FormatMemory(plan.memory));
  if (const std::string text = FormatNewSchedule(plan); !text.empty()) line_.Print(text);
  for (const std::string& warning : plan.warnings) Warn(warning);
}

void TrainDisplay::Warn(const std::string& text) { line_.Print("warning: " + text); }

void TrainDisplay::OnResume(const std::string& checkpoint, std::int64_t step,
                            std::int64_t total_steps) {
  steps_ = step;
  line_.Print(fmt::format("resuming from {}: {} of {} steps are done{}", checkpoint, step,
                          total_steps, step == total_steps ? ", nothing is left to train" : ""));
}

void TrainDisplay::OnMicroBatch(std::int64_t done, std::int64_t total) {
  if (total == 1 || done == total || !line_.style().live) return;
  ShowProgress(line_, fmt::format("step {}, micro-batches", steps_ + 1), done, total);
}

void TrainDisplay::OnStep(const StepReport& report) {
  steps_ = report.step;
  losses_.push_back(report.loss);
  if (report.skipped) {
    Warn(fmt::format("step {} skipped: a NaN or Inf first in {}", report.step, report.bad_tensor));
  }
  if (report.spike) {
    Warn(fmt::format("loss spike at step {}: {:.4f}", report.step, report.loss));
  }
  // Once: after the first time, every step would repeat it.
  if (report.risen && !warned_of_rise_) {
    warned_of_rise_ = true;
    Warn(
        fmt::format("the learning rate makes the loss rise, from {:.4f} at the start to {:.4f} by "
                    "step {}; lower learning_rate",
                    report.start_loss, report.recent_loss, report.step));
  }
  WatchRanks(report.ranks);
  const bool live = line_.style().live;
  const bool last = report.step == report.total_steps;
  // The first step is shown too: later losses are compared with the initial loss.
  if (last || report.step == 1 || (logging_steps_ > 0 && report.step % logging_steps_ == 0)) {
    line_.Print(live ? ShortStep(report) : FormatStep(report));
  }
  // One column less: terminals begin a new line when the last column is written.
  if (live && (line_.Due() || last)) line_.Show(FormatLiveStep(report, line_.style().columns - 1));
}

void TrainDisplay::WatchRanks(const std::vector<RankReport>& ranks) {
  constexpr std::int64_t kFirst = 20;
  constexpr double kMuch = 0.3;
  if (ranks.empty() || first_steps_ == kFirst) return;
  AddStep(ranks, first_ranks_);
  if (++first_steps_ < kFirst) return;
  const RankShares shares = SharesOf(first_ranks_);
  if (shares.waiting <= kMuch) return;
  Warn(
      fmt::format("ranks wait in {:.0f} % of the time of the first {} steps, and rank {} computes "
                  "longest; what helps: packing, a larger global_batch_size, fewer ranks on one "
                  "machine or on a slow network",
                  100 * shares.waiting, kFirst, shares.slowest));
}

bool TrainDisplay::StillFalls() const {
  constexpr double kWell = 0.95;
  return losses_.size() >= 8 && MeanOfQuarter(3) < kWell * MeanOfQuarter(2);
}

// A loss near zero has nowhere to fall.
std::string TrainDisplay::DescribeFlatLoss() const {
  constexpr std::size_t kFewSteps = 20;
  constexpr double kHardly = 0.98;
  constexpr double kLow = 0.1;
  if (losses_.size() < kFewSteps) return "";
  const double first = MeanOfQuarter(0);
  const double last = MeanOfQuarter(3);
  if (!(first > kLow && last > kHardly * first)) return "";
  return fmt::format(
      "the loss has hardly fallen: {:.4f} on average in the first quarter of the steps, {:.4f} in "
      "the last",
      first, last);
}

double TrainDisplay::MeanOfQuarter(int which) const {
  const std::int64_t quarter = std::ssize(losses_) / 4;
  const auto begin = which == 0 ? losses_.begin() : losses_.end() - (4 - which) * quarter;
  return std::accumulate(begin, begin + quarter, 0.0) / static_cast<double>(quarter);
}

void TrainDisplay::OnEvalProgress(std::int64_t done, std::int64_t total) {
  ShowProgress(line_, "evaluating", done, total);
}

void TrainDisplay::OnEval(std::int64_t step, const EvalReport& report) {
  for (const EvalReport::File& file : report.files) {
    line_.Print(fmt::format("eval step={} file={} eval_loss={:.4f} tokens={}", step, file.name,
                            file.loss, file.tokens));
  }
  const char* best = report.best ? " best" : "";
  if (line_.style().live) {
    std::string line = fmt::format("eval step {}  loss {:.4f}", step, report.loss);
    for (const MetricValue& metric : report.metrics) {
      if (std::isnan(metric.value)) continue;
      line += fmt::format("  {} {:.{}f}", metric.name, metric.value, DigitsOf(metric.value));
    }
    line_.Print(line + best);
    return;
  }
  std::string line = fmt::format("eval step={} eval_loss={:.4f}", step, report.loss);
  for (const MetricValue& metric : report.metrics) {
    if (std::isnan(metric.value)) continue;
    line += fmt::format(" {}={:.{}f}", metric.name, metric.value, DigitsOf(metric.value));
  }
  line_.Print(line +
              fmt::format(" tokens={} seconds={:.1f}{}", report.tokens, report.seconds, best));
}

void TrainDisplay::OnSample(const SampleReport& report) {
  line_.Print(fmt::format("sample step={} {:?} -> {:?}", report.step, report.prompt, report.text));
}

void TrainDisplay::OnCheckpoint(const std::string& dir) {
  // Named when the run fails or is interrupted.
  last_checkpoint_ = dir;
  last_identity_ = IdentityOf(dir);
  line_.Print(fmt::format("checkpoint {}", dir));
}

bool TrainDisplay::HasLastCheckpoint() const {
  return last_identity_ && IdentityOf(last_checkpoint_) == last_identity_;
}

void TrainDisplay::PrintSummary(const RunSummary& summary) {
  // No step was made: rates and means would be of nothing.
  if (summary.steps == summary.resumed_step) return;
  line_.Print(fmt::format(
      "train_runtime={:.1f}s train_steps={} train_steps_per_second={:.3f} train_loss={:.4f} "
      "trained_tokens={} peak_memory={:.0f}MiB",
      summary.seconds, summary.steps,
      Rate(static_cast<double>(summary.steps - summary.resumed_step), summary.seconds),
      summary.mean_loss, summary.tokens,
      static_cast<double>(summary.peak_memory_bytes) / (1 << 20)));
  if (!summary.ranks.empty()) {
    const RankShares shares = SharesOf(summary.ranks);
    line_.Print(fmt::format("ranks={} computing={:.2f} waiting={:.2f} slowest_rank={}",
                            summary.ranks.size(), shares.computing, shares.waiting,
                            shares.slowest));
  }
  for (const std::string& note : summary.decisions.notes) line_.Print(note);
  if (summary.decisions.result) {
    line_.Print("answers to the evaluation data:\n" + DecisionTable(*summary.decisions.result));
  }
  if (summary.stopped_early) line_.Print("stopped early: the evaluation has stopped improving");
  if (summary.skipped_steps > 0) {
    line_.Print(fmt::format("skipped_steps={} (NaN or Inf)", summary.skipped_steps));
  }
}

}  // namespace qlora
