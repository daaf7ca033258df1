#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "common.h"
#include "generate_command.h"
#include "interrupt.h"
#include "model_loading.h"
#include "qlora/error.h"
#include "qlora/train.h"
#include "quantized_base.h"
#include "report/dashboard.h"
#include "run_check.h"
#include "train/run_info.h"
#include "train_display.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class TrainVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "train",
        .summary = "fine-tune a model: base + dataset -> LoRA adapter",
        .explanation =
            "Holds the base model in 4 bits, trains a LoRA adapter on the dataset, and writes it "
            "to output_dir in the form that PEFT reads. The dataset is a file of JSON lines: "
            "{\"text\"}, {\"prompt\", \"completion\"}, {\"messages\"}, {\"input_ids\"}, Alpaca or "
            "ShareGPT; CSV and plain text work too. Ctrl+C saves a checkpoint, from which "
            "--resume_from_checkpoint auto resumes. Every step is recorded in "
            "output_dir/train_log.jsonl.",
        .examples = {"qlora train --model ./my-model --dataset train.jsonl --output_dir my-adapter",
                     "qlora train run.yaml --learning_rate 1e-4 --num_train_epochs 3"},
        .positionals = {"config"},
        .required = {"model_name_or_path", "dataset"},
        .writes = true,
    };
  }

  void Declare(OptionTable& table) override { settings_.Declare(table); }
  void Complete(OptionTable& table) override { settings_.options.Complete(table); }

  int Run(const Console& console) override {
    if (settings_.dry_run) {
      CheckRun(console, settings_, false);
      return 0;
    }
    NoteOtherBase(options().model_name_or_path, options().adapter, console);
    Context context(ThreadCount(options().threads));
    const TrainPlan plan = PlanRun(context, console);
    std::optional<Dashboard> dashboard;
    if (settings_.dashboard != 0) {
      dashboard.emplace(settings_.dashboard, options().output_dir);
      console.err << fmt::format("dashboard: {}\n", dashboard->url());
    }
    InterruptGuard guard;
    TrainDisplay display(
        console.err, console.style, options().logging_steps, [&] { return guard.requested(); },
        [&] { guard.ThrowIfRequested(); });
    display.PrintPlan(plan);
    const RunSummary summary = TrainWithAdvice(context, plan, display);
    display.PrintSummary(summary);
    if (summary.interrupted) {
      console.err << fmt::format(
          "interrupted; checkpoint saved in {}\n"
          "to resume, run the same command with --resume_from_checkpoint auto, or\n"
          "  qlora train {} --resume_from_checkpoint auto\n",
          display.last_checkpoint(), ShellQuote(fs::path(options().output_dir) / kTrainConfig));
      return kInterruptedExit;
    }
    if (summary.diverged) throw Error(ErrorCode::kRuntime, summary.divergence);
    console.err << fmt::format(
        "adapter saved in {}\nto try it: {}\n", ShellQuote(summary.adapter_dir),
        GenerateCommand(plan.options.model_name_or_path, summary.adapter_dir, plan.example));
    return 0;
  }

 private:
  // The plan of the run on the quantized base of save_quantized, which is made if it must be. What
  // is wrong with the run is reported before that work.
  TrainPlan PlanRun(Context& context, const Console& console) {
    const bool make_base = FindQuantizedBase(settings_);
    TrainPlan plan = PlanUntilInterrupted(context, options());
    if (!make_base) return plan;
    CheckPlan(plan);
    MakeQuantizedBase(context, console, settings_);
    try {
      return ChangeBase(context, plan, settings_.save_quantized);
    } catch (const Error& error) {  // InvalidInput would say that nothing was changed
      throw Error(error.code() == ErrorCode::kInvalidInput ? ErrorCode::kRuntime : error.code(),
                  fmt::format("{}\nthe quantized base in {} is complete", error.what(),
                              settings_.save_quantized));
    }
  }

  static TrainPlan PlanUntilInterrupted(Context& context, const TrainOptions& options) {
    const InterruptGuard guard;
    TrainPlan plan = PlanTraining(context, options);
    guard.ThrowIfRequested();
    return plan;
  }

  // A failure in the middle of a run says what was saved.
  RunSummary TrainWithAdvice(Context& context, const TrainPlan& plan, TrainDisplay& display) {
    try {
      return Train(context, plan, display);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRuntime || display.last_checkpoint().empty()) throw;
      throw Error(error.code(),
                  fmt::format("{}\nthe last checkpoint is {}; to resume from it, run the same "
                              "command with --resume_from_checkpoint auto",
                              error.what(), display.last_checkpoint()));
    }
  }

  const TrainOptions& options() const { return settings_.options; }

  TrainSettings settings_;
};

}  // namespace

std::unique_ptr<Verb> MakeTrainVerb() { return std::make_unique<TrainVerb>(); }

}  // namespace qlora
