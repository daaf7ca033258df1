// Where an export may write: checked before the model is loaded.
#ifndef QLORA_EXPORT_EXPORT_OUTPUT_H_
#define QLORA_EXPORT_EXPORT_OUTPUT_H_

#include "io/peft/adapter_source.h"
#include "qlora/export.h"

namespace qlora {

// Errors: InvalidInput when the output exists, is the model itself, has the name of another format,
// or cannot be made.
void CheckExportOutput(const ExportOptions& options, const AdapterSet& adapters);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_OUTPUT_H_
