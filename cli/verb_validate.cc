// `qlora validate`: the checks of `train`, and its plan, without its work. Exit codes are those of
// `train`, so that a script can ask before it queues a run.
#include "run_check.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

class ValidateVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "validate",
        .summary = "check a train command: options, model, data, memory, disk space",
        .explanation =
            "Takes the options of `train` and makes every check that `train` makes before it "
            "starts: keys and values, the model's files, each record of the data, the memory plan "
            "and the space that adapter and checkpoints need in output_dir. Prints what it finds "
            "and writes nothing. Exit code 0: the run can start (with device cuda and a warning: "
            "on a machine with such a GPU); 2: something is wrong, and the message says what to "
            "change; 3: the run does not fit in memory. `train --dry-run` makes the same check.",
        .examples = {"qlora validate run.yaml",
                     "qlora validate --model ./my-model --dataset train.jsonl --json"},
        .positionals = {"config"},
        // As `train`; `plan` also answers without data.
        .required = {"model_name_or_path", "dataset"},
    };
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    run_.DeclareJson(table);
  }
  // As `train`: what is checked is what would run.
  void Complete(OptionTable& table) override { settings_.options.Complete(table); }

  int Run(const Console& console) override {
    CheckRun(console, settings_, run_.json);
    return 0;
  }

 private:
  TrainSettings settings_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeValidateVerb() { return std::make_unique<ValidateVerb>(); }

}  // namespace qlora
