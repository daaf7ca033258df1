// Adapters alone as GGUF files for llama.cpp.
//
//   a linear      NAME.weight.lora_a (R, I), NAME.weight.lora_b (O, R), stacked for experts
//   the head      output.weight.lora_a (R, D), output.weight.lora_b (V, R)
//   embeddings    token_embd.weight.lora_a (V, R), a row for each token, and .lora_b (D, R)
#ifndef QLORA_EXPORT_GGUF_EXPORT_GGUF_ADAPTER_H_
#define QLORA_EXPORT_GGUF_EXPORT_GGUF_ADAPTER_H_

#include <string>
#include <vector>

#include "adapter/lora.h"
#include "adapter/table_change.h"
#include "config/config.h"
#include "export/export_target.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

// The base of an adapter, as its file names it. "": not known.
struct GgufAdapterBase {
  std::string name;
  std::string repository;   // org/name
  std::string fingerprint;  // TrainedFingerprint
};

// Errors: InvalidInput for what an adapter GGUF cannot hold: whole tables, rows of tokens, tables
// of a model with a tied head, DoRA. tables: of the adapter, as they were before FoldTables.
// where: the adapter, for messages.
void CheckGgufAdapter(const DecoderConfig& config, const LoraAdapter& adapter,
                      const std::vector<TableChange>& tables, const std::string& where);

// Writes the adapter. All scaling is folded in, so that llama.cpp's alpha / rank gives the trained
// scale, with rsLoRA and with ranks and alphas that differ.
void ExportGgufAdapter(Context& context, const DecoderConfig& config, const DecoderWeights& weights,
                       const LoraAdapter& adapter, const std::vector<TableChange>& tables,
                       const GgufAdapterBase& base, const ExportTarget& target);

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_EXPORT_GGUF_ADAPTER_H_
