// save_quantized: a 4-bit checkpoint of the base beside the run, made once and used by later runs.
#ifndef QLORA_CLI_QUANTIZED_BASE_H_
#define QLORA_CLI_QUANTIZED_BASE_H_

#include "train_settings.h"
#include "verb.h"

namespace qlora {

// Makes settings.options train on the checkpoint in settings.save_quantized. Where there is none
// yet: with `make`, quantizes the model into it first (progress and Ctrl+C as for `quantize`);
// without, leaves the options alone. Errors: InvalidInput when that folder holds something else, or
// what another model, other files or other quantization options gave.
void UseQuantizedBase(const Console& console, TrainSettings& settings, bool make);

}  // namespace qlora

#endif  // QLORA_CLI_QUANTIZED_BASE_H_
