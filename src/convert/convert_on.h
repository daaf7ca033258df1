// Conversions on backends of the caller's choice.
//
// quantize.cc writes a 4-bit checkpoint, one tensor at a time, through io/tensor_file.h. export.cc
// loads the base in the form that the adapter was trained on (model/base_record.h), merges it row
// by row (merged_linear.h), and streams the result to a GGUF file (export_gguf.h) or to safetensors
// (export_hf.h). verify.h reads the result back and compares its log-probabilities with the source.
//
//   gguf_names.h      names, order of rows and metadata of llama.cpp; one row per architecture
//   gguf_tokenizer.h  the tokenizer as GGUF keys
//   gguf_weights.h    reads a GGUF model again, to verify it
//   calibration.h     the mean square of the inputs of linears, which weighs errors of quantization
//   model_folder.h    a folder of a model that appears whole or not at all
//   inspect.cc        the report of `qlora inspect` about a file or a folder
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
