#include "convert/quantize_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "convert/config_json.h"
#include "convert/gguf_base.h"
#include "hub/hub_cache.h"
#include "io/checkpoint_names.h"
#include "io/fp8.h"
#include "io/gguf_path.h"
#include "model/checkpoint.h"
#include "model/quantization.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "qlora/options.h"

namespace qlora {
namespace {

// Returns the names of the weights of the blocks' linears, as the checkpoint spells them.
// with_experts: also of linears of experts.
std::set<std::string> LinearWeights(const DecoderConfig& config, const TensorReader& reader,
                                    bool with_experts) {
  std::set<std::string> weights;
  // A multimodal model puts more before "layers.".
  const std::string prefix = DecoderPrefix(reader);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachLinear(LayerTensors(config, l), [&](const LayerTensor& row, std::int64_t expert) {
      if (row.group == LinearGroup::kSideRouter || (row.experts > 0 && !with_experts)) return;
      const std::string weight = row.ModuleIn(prefix, l, expert) + ".weight";
      if (reader.Find(weight) != nullptr) weights.insert(weight);
    });
  }
  return weights;
}

// The modules beside the decoder, such as an image encoder, which are not quantized. Their paths
// begin with "model." or not, by the version of transformers.
std::set<std::string> OtherModules(const TensorReader& reader) {
  std::set<std::string> modules;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (SplitDecoderName(tensor.name) || tensor.name == HeadName(reader)) continue;
    const std::size_t begin = tensor.name.starts_with("model.") ? 6 : 0;
    const std::size_t dot = tensor.name.find('.', begin);
    const std::string module = tensor.name.substr(begin, dot - begin);
    if (dot == std::string::npos || module == "lm_head") continue;
    modules.insert({module, "model." + module});
  }
  return modules;
}

}  // namespace

QuantizePlan::QuantizePlan(const QuantizeCheckpointOptions& options)
    : options_(options),
      model_dir_(ResolveModelDir(options.model_name_or_path)),
      is_gguf_(FindGguf(model_dir_).has_value()),
      config_(LoadForCheckpoint(model_dir_)),
      reader_(OpenCheckpoint(model_dir_, config_)),
      linears_(LinearWeights(config_, *reader_, options.quantize_experts || options.dequantize)),
      stored_values_(config_, *reader_),
      quantize_(ParseQuantizeOptions(options.quantization)) {
  // Calibration weighs the errors that the search minimises; without the search it would do
  // nothing.
  quantize_.scale_search |= !options.calibration_data.empty();
  if (!is_gguf_) return;
  const TensorInfo* embedding = reader_->Find(EmbeddingName(*reader_));
  if (embedding != nullptr) gguf_type_ = DenseTypeOf(embedding->dtype, config_);
}

std::vector<std::string> QuantizePlan::Check(Context& context, Backend& backend) {
  if (config_.moe.is_joined) {
    ThrowInvalidInput(
        "{}: a {} has its experts in parameters that bitsandbytes does not quantize; train on the "
        "checkpoint as it is, in MXFP4 or 16 bits",
        model_dir_.string(), config_.model_type);
  }
  if (options_.dequantize && !options_.calibration_data.empty()) {
    ThrowInvalidInput("calibration_data cannot be combined with dequantize");
  }
  const bool any_stored = std::any_of(linears_.begin(), linears_.end(),
                                      [&](const auto& name) { return IsStoredIn4Bits(name); });
  if (options_.dequantize && !any_stored) {
    ThrowInvalidInput(
        "{}: nothing to dequantize, the checkpoint holds no 4-bit weights{}", model_dir_.string(),
        is_gguf_ ? "; `export --format hf` writes a GGUF file as a checkpoint in 16 bits" : "");
  }
  if (any_stored && !options_.dequantize) CheckOptionsOfStored();
  // Every tensor of the decoder is there and has the shape that config.json gives it.
  const WeightSizes sizes = PlanWeights(context, backend, model_dir_, config_, {});
  std::vector<std::string> notes = sizes.notes;
  if (is_gguf_) gguf_config_ = CheckpointConfig(model_dir_);
  // Those that are in 4 bits already are copied.
  const bool has_experts = config_.experts().num_experts > 0;
  if (has_experts && !options_.dequantize && !any_stored) notes.push_back(NoteExperts());
  if (is_gguf_ && !sizes.block_formats.empty()) {
    notes.push_back(fmt::format(
        "{} holds the linears in {}: they are rounded a second time, and the errors below come on "
        "top of those of the file; the checkpoint that it was made from would lose less",
        model_dir_.string(), fmt::join(sizes.block_formats, ", ")));
  }
  return notes;
}

std::string QuantizePlan::NoteExperts() const {
  if (options_.quantize_experts && config_.side_moe.num_experts == 0) {
    return "the experts are in 4 bits, each on its own: this program and Unsloth read them, "
           "transformers 5 does not";
  }
  const bool may_be = config_.side_moe.num_experts == 0;
  return fmt::format(
      "the experts stay in 16 bits: transformers has them in one parameter a layer, which "
      "bitsandbytes does not quantize{}",
      may_be ? "; --quantize-experts writes them in 4 bits, for this program alone" : "");
}

// Weights that are in 4 bits already are copied, so no option can change their form.
void QuantizePlan::CheckOptionsOfStored() const {
  QuantizeCheckpointOptions asked = options_;
  QuantizeCheckpointOptions neutral;
  OptionTable asked_table;
  OptionTable neutral_table;
  asked.Declare(asked_table);
  neutral.Declare(neutral_table);
  // An option that the user set and that does nothing is an error: the checkpoint would seem to
  // have that form.
  for (const char* key : {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_blocksize",
                          "scale_search", "calibration_data", "bnb_rule"}) {
    if (asked_table.Find(key)->ToString() == neutral_table.Find(key)->ToString()) continue;
    ThrowInvalidInput(
        "{}: the linears are in 4 bits already and are copied as they are, so that {} would have "
        "no effect; quantize the 16-bit model, or make one with --dequantize first",
        model_dir_.string(), key);
  }
}

bool QuantizePlan::Quantizes(const TensorInfo& tensor) const {
  // A linear of integers, as another program stores it, is copied.
  return !options_.dequantize && linears_.contains(tensor.name) && !IsStoredIn4Bits(tensor.name) &&
         (IsFloat(tensor.dtype) || tensor.dtype.is_blocks()) && tensor.shape.size() == 2;
}

bool QuantizePlan::TellsSizeLast(const std::string& name) const {
  // Without nested scales the text has no offset, and its size is known.
  return name.find(".quant_state.bitsandbytes__") != std::string::npos &&
         reader_->Find(std::string(BnbWeightOf(name)) + ".nested_absmax") != nullptr;
}

TensorType QuantizePlan::OutputType(const TensorInfo& tensor) const {
  if (is_gguf_) return gguf_type_;
  return IsDecodedFp8(*reader_, tensor) ? TensorType(DType::kBF16) : tensor.dtype;
}

BnbLayout QuantizePlan::LayoutOf(const TensorInfo& tensor) const {
  BnbLayout layout;
  layout.type = quantize_.type;
  layout.dtype = OutputType(tensor);
  layout.shape = tensor.shape;
  layout.block_size = quantize_.block_size;
  layout.double_quant = quantize_.scale_type == ScaleType::kDoubleBnb;
  return layout;
}

std::vector<TensorInfo> QuantizePlan::Outputs() const {
  std::vector<TensorInfo> outputs;
  for (const TensorInfo& tensor : reader_->tensors()) {
    if (Quantizes(tensor)) {
      for (TensorInfo& piece : BnbTensors(tensor.name, LayoutOf(tensor))) {
        outputs.push_back(std::move(piece));
      }
    } else if (!options_.dequantize) {
      outputs.push_back(tensor);
      outputs.back().name = stored_values_.NameOf(tensor.name);
      outputs.back().dtype = OutputType(tensor);
      outputs.back().upper_bound = TellsSizeLast(tensor.name);
    } else if (IsStoredIn4Bits(tensor.name)) {
      const BnbLayout layout = ReadBnb(*reader_, tensor.name).layout;
      outputs.push_back({tensor.name, layout.dtype, layout.shape});
    } else if (BnbWeightOf(tensor.name).empty()) {
      outputs.push_back(tensor);
    }
  }
  return outputs;
}

// transformers quantizes every nn.Linear that this list does not name: the head and the routers of
// experts are stored in 16 bits, and must be named.
std::vector<std::string> QuantizePlan::SkippedModules() const {
  std::vector<std::string> modules = {"lm_head"};
  for (const std::string& module : OtherModules(*reader_)) modules.push_back(module);
  for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    if (!config_.has_experts(l)) continue;
    modules.push_back(fmt::format("{}layers.{}.{}", config_.module_prefix, l, RouterName(config_)));
    if (options_.quantize_experts) continue;
    modules.push_back(
        fmt::format("{}layers.{}.{}.experts", config_.module_prefix, l, config_.names.mlp));
  }
  for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    if (config_.side_moe.num_experts == 0) continue;
    modules.push_back(fmt::format("{}layers.{}.router.proj", config_.module_prefix, l));
  }
  return modules;
}

Json QuantizePlan::ConfigJson() const {
  Json config = is_gguf_ ? gguf_config_ : ReadJsonFile(model_dir_ / "config.json");
  if (is_gguf_) config["torch_dtype"] = TorchDtypeOf(gguf_type_, config_);
  if (options_.dequantize) {
    config.erase("quantization_config");
    return config;
  }
  // Weights that were copied keep the configuration that describes them.
  const bool is_copied = config.contains("quantization_config") &&
                         !IsFp8Config(config["quantization_config"], "quantization_config");
  if (is_copied && reader_->shows_decoded_4bit()) {
    // Tables and routers that were in 4 bits are written as they are read.
    Json& skipped = config["quantization_config"]["llm_int8_skip_modules"];
    if (!skipped.is_array()) skipped = Json::array();
    for (const std::string& module : SkippedModules()) skipped.push_back(module);
  }
  if (!is_copied) {
    config["quantization_config"] = FormatBnbConfig(
        {quantize_.type, quantize_.scale_type == ScaleType::kDoubleBnb, SkippedModules()});
  }
  return config;
}

}  // namespace qlora
