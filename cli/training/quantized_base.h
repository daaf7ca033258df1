// save_quantized: keeps a 4-bit checkpoint of the base, made by the first run and used by later
// runs.
#ifndef QLORA_CLI_TRAINING_QUANTIZED_BASE_H_
#define QLORA_CLI_TRAINING_QUANTIZED_BASE_H_

#include "command/verb.h"
#include "qlora/context.h"
#include "training/train_settings.h"

namespace qlora {

// With save_quantized, makes settings.options train on the checkpoint in that folder where there is
// one. Returns true when the checkpoint must be made first; the options are unchanged then. Errors:
// InvalidInput when the folder holds something else, or a checkpoint that was made from other files
// or with other quantization options.
bool FindQuantizedBase(TrainSettings& settings);

// Quantizes the model into the folder of save_quantized, with progress and Ctrl+C as `quantize`.
void MakeQuantizedBase(Context& context, const Console& console, const TrainSettings& settings);

}  // namespace qlora

#endif  // QLORA_CLI_TRAINING_QUANTIZED_BASE_H_
