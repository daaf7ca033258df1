#include "training/train_settings.h"

#include "base/check.h"
#include "foreign/rules.h"

namespace qlora {

void TrainSettings::Declare(OptionTable& table) {
  // The options of the run first: these below are about the command and are not recorded with the
  // run, so that `resume` does not repeat them.
  options.Declare(table);
  table.AddPath(
      "save_quantized", &save_quantized,
      "folder for the base model in 4 bits: written by the first run, loaded by later runs");
  table.AddPath("gate", &gate,
                "suite of tasks, a YAML file: exit code 4 where the adapter has lost more of them "
                "than it allows");
  table.Add("dry_run", &dry_run,
            "check the run and print its plan, as `qlora validate`; write nothing");
  table.Add("dashboard", &dashboard,
            "port of a live page about the run, for this machine only; 0: no page");
  table.Add(
      "ddp_timeout", &ddp_timeout,
      "with several ranks: end them when one has waited so many seconds for others, and three "
      "times as long as its own work took; 0: wait");
}

void CheckBatchOptions(OptionTable& table) {
  // The record of a run has all options, and 0 for the one that it does not use.
  const Option* global = table.Find("global_batch_size");
  const bool is_given = global->set && global->ToString() != "0";
  if (!is_given || !table.Find("gradient_accumulation_steps")->set) return;
  ThrowInvalidInput(
      "global_batch_size and gradient_accumulation_steps both say how many samples a step has; "
      "keep one");
}

void RefuseTrainSetting(const std::string& key, const std::string& origin) {
  TrainSettings settings;
  OptionTable table;
  settings.Declare(table);
  const Option* option = table.Find(key);
  if (option == nullptr) return;
  ThrowInvalidInput("{}: this verb has no such option; {}", origin,
                    option->name == Underscored(key)
                        ? "`qlora train` has it"
                        : fmt::format("it is {} of `qlora train`", option->name));
}

}  // namespace qlora
