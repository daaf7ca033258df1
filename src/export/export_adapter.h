// Adapters alone for PEFT and mlx-lm; export_gguf.h writes those for llama.cpp.
#ifndef QLORA_EXPORT_EXPORT_ADAPTER_H_
#define QLORA_EXPORT_EXPORT_ADAPTER_H_

#include <filesystem>
#include <string>
#include <vector>

#include "adapter/lora_values.h"
#include "config/config.h"
#include "export/export_target.h"

namespace qlora {

// Write the folder target.path, with the tokenizer and the record of the base that `source` has,
// the folder (or file) of the first adapter, and return the files. target.outtype is F32, F16 or
// BF16. Errors: as WriteAdapter and WriteMlxAdapter.
std::vector<std::string> ExportPeftAdapter(const AdapterValues& adapter,
                                           const DecoderConfig& decoder,
                                           const std::filesystem::path& source,
                                           const ExportTarget& target);
std::vector<std::string> ExportMlxAdapter(const AdapterValues& adapter,
                                          const DecoderConfig& decoder,
                                          const std::filesystem::path& source,
                                          const ExportTarget& target);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_ADAPTER_H_
