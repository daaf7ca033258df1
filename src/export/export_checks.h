// Options of an export that contradict each other or have no effect.
#ifndef QLORA_EXPORT_EXPORT_CHECKS_H_
#define QLORA_EXPORT_EXPORT_CHECKS_H_

#include "qlora/export.h"

namespace qlora {

// options.format is resolved. Errors: InvalidInput for values that no option has, for a type that
// the format cannot hold or that needs what is not given, and for options without effect.
void CheckExportOptions(const ExportOptions& options);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_CHECKS_H_
