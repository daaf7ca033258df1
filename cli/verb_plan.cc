// `qlora plan`: what a run needs, from shapes alone. With data the plan is that of `train`;
// without, the longest sequences are assumed, so that the answer is an upper bound.
#include <filesystem>

#include "run_check.h"
#include "train_settings.h"
#include "verbs.h"

namespace qlora {
namespace {

// Whether a bare argument is the model, not a file of options.
bool NamesModel(const std::string& argument) {
  if (argument.empty() || argument[0] == '-' || argument.find('=') != std::string::npos)
    return false;
  const std::filesystem::path path = argument;
  std::error_code ignored;
  if (path.extension() == ".yaml" || path.extension() == ".yml") return false;
  // A .json file is a config.json; any other existing file is taken for options.
  return path.extension() == ".json" || !std::filesystem::is_regular_file(path, ignored);
}

class PlanVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "plan",
        .summary = "print the memory that a train command will need, without loading weights",
        .explanation =
            "Takes the options of `train`, makes the checks of `validate`, and prints what the run "
            "will need: memory at its peak, disk space, optimizer steps. Writes nothing, also "
            "when output_dir already holds a run. Without a dataset, all sequences are taken to "
            "have max_length tokens, and the model may also be a config.json or a well-known name, "
            "of which nothing needs to be downloaded. With device cuda, the memories of host and "
            "GPU are planned separately and max_memory is that of the GPU, which this machine need "
            "not have. Exit code 3: the run does not fit into max_memory, or into the free memory "
            "of this machine.",
        .examples = {"qlora plan Llama-3.1-8B --max_length 2048",
                     "qlora plan --model ./my-model --dataset train.jsonl --max_length 1024",
                     "qlora plan run.yaml --per_device_train_batch_size 4 --json",
                     "qlora plan Llama-3.1-8B --device cuda --max_memory 12GB"},
        .positionals = {"config"},
        .required = {"model_name_or_path"},
    };
  }

  // `qlora plan Llama-3.1-8B`: beside a file of options, the first argument may be the model.
  std::vector<std::string> Spell(std::vector<std::string> arguments) const override {
    if (!arguments.empty() && NamesModel(arguments[0])) {
      arguments[0] = "--model_name_or_path=" + arguments[0];
    }
    return arguments;
  }

  void Declare(OptionTable& table) override {
    settings_.Declare(table);
    run_.DeclareJson(table);
  }
  void Complete(OptionTable& table) override { settings_.options.Complete(table); }

  int Run(const Console& console) override {
    settings_.options.overwrite_output_dir = true;  // a plan does not ask what output_dir holds
    // Without data there are no lengths: every sequence counts as max_length.
    if (settings_.options.data.dataset.empty()) {
      CheckShape(console, settings_, run_.json);
    } else {
      CheckRun(console, settings_, run_.json);
    }
    return 0;
  }

 private:
  TrainSettings settings_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakePlanVerb() { return std::make_unique<PlanVerb>(); }

}  // namespace qlora
