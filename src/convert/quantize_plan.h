// What `quantize` makes of a checkpoint: which tensors become 4-bit weights or 16-bit ones again,
// which stay, and the config.json that says so.
#ifndef QLORA_CONVERT_QUANTIZE_PLAN_H_
#define QLORA_CONVERT_QUANTIZE_PLAN_H_

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/config.h"
#include "convert/stored_values.h"
#include "io/bnb.h"
#include "io/json.h"
#include "io/tensor_file.h"
#include "qlora/context.h"
#include "qlora/quantize.h"

namespace qlora {

class QuantizePlan {
 public:
  // Opens the checkpoint. options must outlive the plan.
  explicit QuantizePlan(const QuantizeCheckpointOptions& options);

  // Called before ConfigJson. Returns remarks about the checkpoint. Errors: InvalidInput for a
  // checkpoint that cannot be converted, and for options without effect on it.
  std::vector<std::string> Check(Context& context, Backend& backend);

  const std::filesystem::path& model_dir() const { return model_dir_; }
  bool is_gguf() const { return is_gguf_; }
  // That tensors of a GGUF file get which stay dense.
  DType gguf_type() const { return gguf_type_; }
  const DecoderConfig& config() const { return config_; }
  const TensorReader& reader() const { return *reader_; }
  const QuantizeOptions& quantize() const { return quantize_; }
  StoredValues& stored_values() { return stored_values_; }

  bool IsStoredIn4Bits(const std::string& name) const { return HasQuantState(*reader_, name); }
  // True for a dense linear; 4-bit linears stay as they are, bit for bit.
  bool Quantizes(const TensorInfo& tensor) const;
  // True for the one piece of a 4-bit weight whose size WriteBnb knows last: the text with the
  // offset of double quantization. A copy is declared alike, so that it gets the same place in the
  // file.
  bool TellsSizeLast(const std::string& name) const;
  // The type in which a tensor is written, or a weight is to be decoded.
  TensorType OutputType(const TensorInfo& tensor) const;
  BnbLayout LayoutOf(const TensorInfo& tensor) const;

  // The tensors of the new checkpoint.
  std::vector<TensorInfo> Outputs() const;
  // config.json of the new checkpoint.
  Json ConfigJson() const;

 private:
  void CheckOptionsOfStored() const;
  void CheckQuantizesExperts() const;
  std::string NoteExperts() const;

  // The linears of the decoder as config.json names them.
  struct ModuleForms {
    std::vector<std::string> dense;
    std::vector<std::string> in_4_bits;
  };
  bool IsWrittenIn4Bits(const std::string& name) const;
  ModuleForms FormsOfModules() const;
  std::vector<std::string> SkippedModules() const;
  void CorrectSkipped(Json& quantization) const;

  const QuantizeCheckpointOptions& options_;
  std::filesystem::path model_dir_;
  bool is_gguf_;
  DecoderConfig config_;
  std::unique_ptr<TensorReader> reader_;
  std::set<std::string> linears_;  // their weights
  StoredValues stored_values_;
  QuantizeOptions quantize_;
  Json gguf_config_;  // config.json of a GGUF file
  DType gguf_type_ = DType::kF16;
};

}  // namespace qlora

#endif  // QLORA_CONVERT_QUANTIZE_PLAN_H_
