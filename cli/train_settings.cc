#include "train_settings.h"

namespace qlora {

void TrainSettings::Declare(OptionTable& table) {
  options.Declare(table);
  table.Add("save_quantized", &save_quantized,
            "folder for the base in 4 bits: made by the first run, from then on loaded at once");
  table.Add("dry_run", &dry_run, "check everything, print the plan, write nothing");
  table.Add("dashboard", &dashboard,
            "port of a live page about the run, for this machine only; 0: none");
}

}  // namespace qlora
