// `qlora plan` and `qlora validate`: the checks of `train` and its plan, without its work. Both run
// the check of `train --dry-run`, with the exit codes of `train`, so that a script can ask before
// it queues a run. `plan` also answers without data.
#include "base/check.h"

#include <filesystem>
#include <utility>

#include "hub/known_models.h"
#include "io/gguf_path.h"
#include "training/run_check.h"
#include "training/train_settings.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

// True when a bare argument is the model, not a file of options.
bool NamesModel(const std::string& argument) {
  if (argument.empty() || argument[0] == '-' || argument.find('=') != std::string::npos)
    return false;
  const std::filesystem::path path = argument;
  std::error_code ignored;
  if (path.extension() == ".yaml" || path.extension() == ".yml") return false;
  // A .json file is a config.json; any other existing file but GGUF is taken for options.
  return path.extension() == ".json" || FindGguf(path) ||
         !std::filesystem::is_regular_file(path, ignored);
}

class CheckVerb : public Verb {
 public:
  CheckVerb(VerbText text, PlanPurpose purpose) : text_(std::move(text)), purpose_(purpose) {}

  VerbText text() const override { return text_; }

  // `qlora plan Llama-3.1-8B`: the first argument may be the model instead of a file of options.
  std::vector<std::string> Spell(std::vector<std::string> arguments) const override {
    if (purpose_ == PlanPurpose::kReading && !arguments.empty() && NamesModel(arguments[0])) {
      arguments[0] = "--model_name_or_path=" + arguments[0];
    }
    return arguments;
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    table.Add("world_size", &world_size_,
              "number of ranks that the run is planned for, each on a machine of its own");
    run_.DeclareJson(table);
  }
  // Completes the options as `train` does, so that the checked run is the run that would start.
  void Complete(OptionTable& table) override {
    CheckBatchOptions(table);
    settings_.options.Complete(table);
  }

  int Run(const Console& console) override {
    constexpr std::int64_t kMostRanks = 4096;
    if (world_size_ < 1 || world_size_ > kMostRanks) {
      ThrowInvalidInput("world_size: expected 1 to {}, found {}", kMostRanks, world_size_);
    }
    CheckRun(console, settings_, purpose_, static_cast<int>(world_size_), run_.json);
    return 0;
  }

 private:
  VerbText text_;
  PlanPurpose purpose_;
  TrainSettings settings_;
  std::int64_t world_size_ = 1;
  RunFields run_;
};

VerbText PlanText() {
  return {
      .name = "plan",
      .summary = "print the memory that a train command will need, without loading weights",
      .explanation =
          "Takes the options of `train` and makes the check of `validate`, but output_dir may hold "
          "a "
          "run. Without a dataset, only the model is looked at: all sequences are taken to have "
          "max_length tokens, and the model may also be a config.json or a well-known name, of "
          "which nothing needs to be downloaded. Exit code 3: the run does not fit into "
          "max_memory, or into the free memory of this machine.",
      .examples = {"qlora plan Llama-3.1-8B --max_length 2048",
                   "qlora plan --model ./my-model --dataset train.jsonl --max_length 1024",
                   "qlora plan run.yaml --per_device_train_batch_size 4 --json",
                   "qlora plan Llama-3.1-8B --world_size 8"},
      .positionals = {"config"},
      .required = {"model_name_or_path"},
      .offered = KnownModelNames(),
  };
}

VerbText ValidateText() {
  return {
      .name = "validate",
      .summary = "check a train command: options, model, data, memory, disk space",
      .explanation =
          "Takes the options of `train` and makes every check that `train` makes before it starts: "
          "keys and values, the model's files, each record of the data, the memory plan and the "
          "space that adapter and checkpoints need in output_dir. Prints what it finds and writes "
          "nothing. Exit code 0: the run can start; 2: something is wrong, and the message says "
          "what to change; 3: the run does not fit in memory. `train --dry-run` makes the same "
          "check.",
      .examples = {"qlora validate run.yaml",
                   "qlora validate --model ./my-model --dataset train.jsonl --json"},
      .positionals = {"config"},
      // As in `train`; only `plan` answers without data.
      .required = {"model_name_or_path", "dataset"},
  };
}

}  // namespace

std::unique_ptr<Verb> MakePlanVerb() {
  return std::make_unique<CheckVerb>(PlanText(), PlanPurpose::kReading);
}

std::unique_ptr<Verb> MakeValidateVerb() {
  return std::make_unique<CheckVerb>(ValidateText(), PlanPurpose::kTraining);
}

}  // namespace qlora
