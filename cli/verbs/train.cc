// `qlora train`: fine-tunes a model.
#include "command/common.h"
#include "training/run_check.h"
#include "training/train_settings.h"
#include "training/training_run.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

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
            "ShareGPT; Parquet, CSV and plain text work too. Ctrl+C saves a checkpoint, and a run "
            "that ends leaves one of its last step: `qlora resume` continues from either. Every "
            "step is recorded in output_dir/train_log.jsonl. Started by mpirun, srun or torchrun, "
            "several processes share out the work of a step; global_batch_size keeps the run the "
            "same.",
        .examples = {"qlora train --model ./my-model --dataset train.jsonl --output_dir my-adapter",
                     "qlora train run.yaml --learning_rate 1e-4 --num_train_epochs 3"},
        .positionals = {"config"},
        // The least that a run needs. Every other option has a default, which help and schema show.
        .required = {"model_name_or_path", "dataset"},
        .writes = true,
        .on_ranks = true,
    };
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    run_.DeclareJson(table);
  }
  // After the command line and the file: defaults that depend on other options are chosen here.
  void Complete(OptionTable& table) override {
    CheckBatchOptions(table);
    settings_.options.Complete(table);
  }

  int Run(const Console& console) override {
    if (settings_.dry_run) {
      if (ranks().is_root()) {
        CheckRun(console, settings_, PlanPurpose::kTraining, ranks().size(), run_.json);
      }
      return 0;
    }
    // No further check of the plan; `resume` has one.
    return RunTraining(console, ranks(), settings_, run_.json, [](const TrainPlan&) {});
  }

 private:
  TrainSettings settings_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeTrainVerb() { return std::make_unique<TrainVerb>(); }

}  // namespace qlora
