// What an export reads: the model, and the adapter that is merged into it or written alone.
#ifndef QLORA_EXPORT_EXPORT_SOURCE_H_
#define QLORA_EXPORT_EXPORT_SOURCE_H_

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "adapter/lora_values.h"
#include "adapter/table_change.h"
#include "backend/backend.h"
#include "config/config.h"
#include "export/gguf/gguf_mix.h"
#include "io/json.h"
#include "io/peft/adapter_source.h"
#include "model/base_record.h"
#include "model/gguf_source.h"
#include "model/weights.h"
#include "qlora/context.h"
#include "qlora/export.h"

namespace qlora {

class ExportSource {
 public:
  // Reads the configuration and the adapter. All arguments must outlive this.
  ExportSource(Context& context, Backend& backend, const ExportOptions& options,
               const AdapterSet& adapters, const ProgressFn& progress);

  // Whether the output is an adapter. Errors: InvalidInput when there is none, or a GGUF adapter
  // cannot hold this one.
  bool adapter_only() const { return options_.format.ends_with("-adapter"); }
  void CheckAdapterOnly() const;
  // Adapters of PEFT and mlx-lm are written from their values.
  bool writes_values() const { return adapter_only() && options_.format != "gguf-adapter"; }

  // Loads the weights, with whole modules of the adapter in the place of the model's. An adapter
  // holds nothing of the model, whose weights are then needed for a comparison alone. Returns
  // notes for the user. Errors: InvalidInput for a base that the model cannot be merged into.
  std::vector<std::string> Load(bool compares);

  const std::filesystem::path& model_dir() const { return model_dir_; }
  const DecoderConfig& config() const { return config_; }
  const Json& config_json() const { return config_json_; }  // of format hf
  const AdapterValues& values() const { return values_; }   // of writes_values()
  LoraAdapter* adapter() { return adapter_ ? &*adapter_ : nullptr; }
  const std::vector<TableChange>& table_changes() const { return table_changes_; }
  const DecoderWeights& weights() const { return weights_; }
  // "nf4", "original" or "blocks"; "" where nothing is merged.
  const std::string& merge_base() const { return merge_base_; }

  // The adapter has whole norms, vectors or routers, which are in the weights already.
  bool replaces() const { return adapter_ && adapter_->replaced() != nullptr; }
  // The tensors of a GGUF file keep their types, whatever general.file_type says.
  bool keeps_types() const;
  // MXFP4 is the form in which gpt-oss was published: there is no checkpoint of more bits.
  bool is_published_form() const;
  // The type of the output; auto: the nearest to the form in which the model is stored.
  const GgufFileType& ChooseFileType() const;

  // The name of the model, and its repository on a hub.
  GgufSource Names() const;
  // Of the weights that all adapters were trained on; "" where they differ or are not recorded.
  std::string Fingerprint() const;

 private:
  void CheckMergeBase() const;
  void LoadBase(const BaseRecord& base);

  Context& context_;
  Backend& backend_;
  const ExportOptions& options_;
  const AdapterSet& adapters_;
  const ProgressFn& progress_;
  std::filesystem::path model_dir_;
  DecoderConfig config_;
  Json config_json_;
  AdapterValues values_;
  std::optional<LoraAdapter> adapter_;
  std::vector<TableChange> table_changes_;
  DecoderWeights weights_;
  std::string merge_base_;
};

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_SOURCE_H_
