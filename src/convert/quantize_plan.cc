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

bool IsExpert(const std::string& weight) { return weight.find(".experts.") != std::string::npos; }

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
  const bool any_stored =
      std::ranges::any_of(LinearWeights(config_, *reader_, true),
                          [&](const auto& name) { return IsStoredIn4Bits(name); });
  if (options_.dequantize && !any_stored) {
    ThrowInvalidInput(
        "{}: nothing to dequantize, the checkpoint holds no 4-bit weights{}", model_dir_.string(),
        is_gguf_ ? "; `export --format hf` writes a GGUF file as a checkpoint in 16 bits" : "");
  }
  if (any_stored && !options_.dequantize) CheckOptionsOfStored();
  if (options_.quantize_experts) CheckQuantizesExperts();
  // Every tensor of the decoder is there and has the shape that config.json gives it.
  const WeightSizes sizes = PlanWeights(context, backend, model_dir_, config_, {});
  std::vector<std::string> notes = sizes.notes;
  if (is_gguf_) gguf_config_ = CheckpointConfig(model_dir_);
  // Those that are in 4 bits already are copied.
  const bool has_experts = config_.experts().num_experts > 0;
  const bool converts = options_.quantize_experts || !any_stored;
  if (has_experts && !options_.dequantize && converts) notes.push_back(NoteExperts());
  if (is_gguf_ && !sizes.block_formats.empty()) {
    notes.push_back(fmt::format(
        "{} holds the linears in {}: they are rounded a second time, and the errors below come on "
        "top of those of the file; the checkpoint that it was made from would lose less",
        model_dir_.string(), fmt::join(sizes.block_formats, ", ")));
  }
  return notes;
}

std::string QuantizePlan::NoteExperts() const {
  if (options_.quantize_experts) {
    return "the experts are in 4 bits, each on its own: this program and Unsloth read them, "
           "transformers 5 does not";
  }
  const bool may_be = config_.side_moe.num_experts == 0;
  return fmt::format(
      "the experts stay in 16 bits: transformers has them in one parameter a layer, which "
      "bitsandbytes does not quantize{}",
      may_be ? "; --quantize-experts writes them in 4 bits, for this program and Unsloth" : "");
}

// Errors: InvalidInput where quantize_experts has no effect.
void QuantizePlan::CheckQuantizesExperts() const {
  std::string reason;
  if (options_.dequantize) {
    reason = "with dequantize all weights become 16-bit ones";
  } else if (config_.experts().num_experts == 0) {
    reason = "the model has no experts";
  } else if (config_.side_moe.num_experts > 0) {
    reason = fmt::format(
        "a {} has its experts in one parameter a layer, which no program reads in 4 bits",
        config_.model_type);
  } else if (std::ranges::none_of(linears_, [&](const std::string& name) {
               return IsExpert(name) && Quantizes(*reader_->Find(name));
             })) {
    reason = "the experts are in 4 bits already and are copied as they are";
  }
  if (reason.empty()) return;
  ThrowInvalidInput("{}: quantize_experts would have no effect: {}; leave it out",
                    model_dir_.string(), reason);
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

bool QuantizePlan::IsWrittenIn4Bits(const std::string& name) const {
  if (IsStoredIn4Bits(name)) return !options_.dequantize;
  const TensorInfo* tensor = reader_->Find(name);
  return tensor != nullptr && Quantizes(*tensor);
}

// Of the decoder, as the tensors are written. transformers quantizes every nn.Linear that the list
// of skipped modules does not name: also the head and the routers, which are always in 16 bits.
QuantizePlan::ModuleForms QuantizePlan::FormsOfModules() const {
  ModuleForms forms;
  forms.dense = {"lm_head"};
  const std::string prefix = DecoderPrefix(*reader_);
  const std::string& written = config_.module_prefix;
  for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const std::string layer = fmt::format("{}layers.{}.", written, l);
    if (config_.has_experts(l)) forms.dense.push_back(layer + RouterName(config_));
    std::vector<std::string> experts;
    bool has_experts_in_4_bits = false;
    ForEachLinear(LayerTensors(config_, l), [&](const LayerTensor& row, std::int64_t expert) {
      if (row.is_stacked) return;
      std::string module = row.ModuleIn(written, l, expert);
      const bool in_4_bits = IsWrittenIn4Bits(row.ModuleIn(prefix, l, expert) + ".weight");
      has_experts_in_4_bits |= in_4_bits && row.experts > 0;
      auto& list = in_4_bits ? forms.in_4_bits : row.experts > 0 ? experts : forms.dense;
      list.push_back(std::move(module));
    });
    if (experts.empty()) continue;
    // One name for all.
    if (!has_experts_in_4_bits) experts = {fmt::format("{}{}.experts", layer, config_.names.mlp)};
    forms.dense.insert(forms.dense.end(), experts.begin(), experts.end());
  }
  return forms;
}

// The modules that a new configuration names.
std::vector<std::string> QuantizePlan::SkippedModules() const {
  std::vector<std::string> modules = FormsOfModules().dense;
  for (const std::string& module : OtherModules(*reader_)) modules.push_back(module);
  return modules;
}

// Makes the list of a configuration that is kept agree with the tensors that are written.
void QuantizePlan::CorrectSkipped(Json& quantization) const {
  const ModuleForms forms = FormsOfModules();
  std::set<std::string> left_out;  // with what such modules are in
  for (const std::string& module : forms.in_4_bits) {
    for (std::size_t end = module.size(); end != std::string::npos;
         end = module.rfind('.', end - 1)) {
      left_out.insert(module.substr(0, end));
    }
  }
  Json corrected = Json::array();
  const auto add = [&](const std::string& module) {
    if (left_out.insert(module).second) corrected.push_back(module);
  };
  Json& listed = quantization["llm_int8_skip_modules"];
  if (listed.is_array()) {
    for (const Json& module : listed) {
      if (module.is_string()) add(module.get<std::string>());
    }
  }
  for (const std::string& module : forms.dense) add(module);
  listed = std::move(corrected);
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
  if (is_copied) CorrectSkipped(config["quantization_config"]);
  if (!is_copied) {
    config["quantization_config"] = FormatBnbConfig(
        {quantize_.type, quantize_.scale_type == ScaleType::kDoubleBnb, SkippedModules()});
  }
  return config;
}

}  // namespace qlora
