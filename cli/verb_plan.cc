#include "run_check.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

class PlanVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "plan",
        .summary = "print the memory that a train command will need, without loading weights",
        .explanation =
            "Takes the options of `train`, makes the checks of `validate`, and prints what the run "
            "will need: memory at its peak, disk space, optimizer steps. Writes nothing, also "
            "when output_dir already holds a run. Exit code 3: the run does not fit into "
            "max_memory, or into the free memory of this machine.",
        .examples = {"qlora plan --model ./my-model --dataset train.jsonl --max_length 1024",
                     "qlora plan run.yaml --per_device_train_batch_size 4 --json"},
        .positionals = {"config"},
        .required = {"model_name_or_path", "dataset"},
    };
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    run_.DeclareJson(table);
  }
  void Complete(OptionTable& table) override { settings_.options.Complete(table); }

  int Run(const Console& console) override {
    settings_.options.overwrite_output_dir = true;  // a plan does not ask what output_dir holds
    CheckRun(console, settings_, run_.json);
    return 0;
  }

 private:
  TrainSettings settings_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakePlanVerb() { return std::make_unique<PlanVerb>(); }

}  // namespace qlora
