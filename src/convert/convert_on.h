// Conversions on backends of the caller's choice.
#ifndef QLORA_CONVERT_CONVERT_ON_H_
#define QLORA_CONVERT_CONVERT_ON_H_

#include "backend/backend.h"
#include "qlora/convert.h"

namespace qlora {

// Export and QuantizeCheckpoint of qlora/convert.h.
ExportReport ExportOn(Context& context, const BackendMaker& make_backend,
                      const ExportOptions& options, const ProgressFn& progress = {});
QuantizeReport QuantizeCheckpointOn(Context& context, const BackendMaker& make_backend,
                                    const QuantizeCheckpointOptions& options,
                                    const ProgressFn& progress = {});

}  // namespace qlora

#endif  // QLORA_CONVERT_CONVERT_ON_H_
