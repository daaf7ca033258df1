// `quantize`: a 16-bit checkpoint becomes a bitsandbytes 4-bit one, and back, tensor by tensor.
#include "qlora/quantize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "base/memory_info.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "convert/calibration.h"
#include "convert/config_json.h"
#include "convert/gguf_base.h"
#include "convert/merged_linear.h"
#include "convert/model_folder.h"
#include "convert/rounding_errors.h"
#include "convert/stored_values.h"
#include "hub/hub_cache.h"
#include "io/bnb.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint.h"
#include "model/quantization.h"
#include "model/shared_options.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "qlora/context.h"
#include "qlora/nf4_compat.h"
#include "qlora/options.h"
#include "quant/first_non_finite.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Returns the names of the weights of the blocks' linears, as the checkpoint spells them.
std::set<std::string> LinearWeights(const DecoderConfig& config, const TensorReader& reader) {
  std::set<std::string> weights;
  // A multimodal model puts more before "layers.".
  const std::string prefix = DecoderPrefix(reader);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachLinear(LayerTensors(config, l), [&](const LayerTensor& row, std::int64_t expert) {
      if (row.group == LinearGroup::kSideRouter) return;
      const std::string weight = row.ModuleIn(prefix, l, expert) + ".weight";
      if (reader.Find(weight) != nullptr) weights.insert(weight);
    });
  }
  return weights;
}

class Conversion {
 public:
  Conversion(Context& context, const QuantizeCheckpointOptions& options, const ProgressFn& progress)
      : context_(context),
        backends_(BackendFactory::ForJob(context, options.device)),
        options_(options),
        progress_(progress),
        model_dir_(ResolveModelDir(options.model_name_or_path)),
        is_gguf_(FindGguf(model_dir_).has_value()),
        config_(LoadForCheckpoint(model_dir_)),
        reader_(OpenCheckpoint(model_dir_, config_)),
        linears_(LinearWeights(config_, *reader_)),
        stored_(config_, *reader_) {
    quantize_ = ParseQuantizeOptions(options.quantization);
    // Calibration weighs the errors that the search minimises; without the search it would do
    // nothing.
    quantize_.scale_search |= !options.calibration_data.empty();
  }

  QuantizeReport Run() {
    const Stopwatch watch;
    CheckSource();
    // Before calibration, which takes minutes: an impossible shape is found first.
    const std::vector<TensorInfo> outputs = Declare();
    if (!options_.calibration_data.empty()) {
      calibration_ =
          Calibrate(context_, *backends_->Make(context_, DType::kF32), model_dir_, config_,
                    options_.calibration_data, options_.calibration_tokens, progress_);
      report_.calibration_tokens = calibration_.tokens;
    }
    NamingTarget(options_.output_dir, [&] { Write(outputs); });
    Summarize();
    report_.seconds = watch.seconds();
    report_.peak_memory_bytes = PeakResidentBytes();
    return report_;
  }

 private:
  void Write(const std::vector<TensorInfo>& outputs) {
    NewModelFolder dir(options_.output_dir,
                       options_.overwrite_output_dir ? OpenMode::kReplace : OpenMode::kCreate);
    // Only shapes are known here. Each tensor is read, converted, written and released in turn, so
    // memory is bounded by the largest tensor.
    const std::unique_ptr<TensorWriter> writer = CreateShardedSafetensors(
        dir.path(), outputs, is_gguf_ ? StringMap() : reader_->metadata(), kMaxShardBytes);
    std::int64_t done = 0;
    for (const TensorInfo& tensor : reader_->tensors()) {
      Convert(tensor, *writer);
      if (progress_) progress_(++done, static_cast<std::int64_t>(reader_->tensors().size()));
    }
    writer->Finish();
    if (dense_type_ == DType::kF32) report_.notes.push_back(stored_.Note());
    WriteConfig(dir.path());
    report_.notes.push_back(dir.CopyCompanions(model_dir_));
    std::erase(report_.notes, "");
    for (const auto& [name, text] : options_.extra_files) WriteTextFile(dir.path() / name, text);
    // Only a complete folder takes the name of the output.
    dir.Commit();
  }

  bool Stored(const std::string& name) const { return HasQuantState(*reader_, name); }

  // True for the one piece of a 4-bit weight whose size WriteBnb knows last: the text with the
  // offset of double quantization. A copy is declared alike, so that it gets the same place in the
  // file.
  bool TellsSizeLast(const std::string& name) const {
    // Without nested scales the text has no offset, and its size is known.
    return name.find(".quant_state.bitsandbytes__") != std::string::npos &&
           reader_->Find(std::string(BnbWeightOf(name)) + ".nested_absmax") != nullptr;
  }

  // Errors: InvalidInput.
  void CheckSource() {
    if (config_.moe.is_joined) {
      ThrowInvalidInput(
          "{}: a {} has its experts in parameters that bitsandbytes does not quantize; train on "
          "the "
          "checkpoint as it is, in MXFP4 or 16 bits",
          model_dir_.string(), config_.model_type);
    }
    if (options_.dequantize && !options_.calibration_data.empty()) {
      ThrowInvalidInput("calibration_data cannot be combined with dequantize");
    }
    const bool any_stored = std::any_of(linears_.begin(), linears_.end(),
                                        [&](const std::string& name) { return Stored(name); });
    if (options_.dequantize && !any_stored) {
      ThrowInvalidInput("{}: nothing to dequantize, the checkpoint holds no 4-bit weights{}",
                        model_dir_.string(),
                        is_gguf_ ? "; `export --format hf` writes a GGUF file as a checkpoint in "
                                   "16 bits"
                                 : "");
    }
    if (any_stored && !options_.dequantize) CheckStoredForm();
    // Every tensor of the decoder is there and has the shape that config.json gives it.
    const WeightSizes sizes =
        PlanWeights(context_, *backends_->Make(context_, DType::kF32), model_dir_, config_, {});
    report_.notes = sizes.notes;
    if (!is_gguf_) return;
    config_json_ = CheckpointConfig(model_dir_);
    dense_type_ = DenseTypeOf(reader_->Find(EmbeddingName(*reader_))->dtype, config_);
    if (sizes.block_formats.empty()) return;
    report_.notes.push_back(fmt::format(
        "{} holds the linears in {}: they are rounded a second time, and the errors below come on "
        "top of those of the file; the checkpoint that it was made from would lose less",
        model_dir_.string(), fmt::join(sizes.block_formats, ", ")));
  }

  // Weights that are in 4 bits already are copied, so no option can change their form.
  void CheckStoredForm() const {
    QuantizeCheckpointOptions asked = options_;
    QuantizeCheckpointOptions neutral;
    OptionTable asked_table;
    OptionTable neutral_table;
    asked.Declare(asked_table);
    neutral.Declare(neutral_table);
    // An option that the user set and that does nothing is an error: the checkpoint would seem to
    // have that form.
    for (const char* key : {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
                            "bnb_4bit_blocksize", "scale_search", "calibration_data", "bnb_rule"}) {
      if (asked_table.Find(key)->ToString() == neutral_table.Find(key)->ToString()) continue;
      ThrowInvalidInput(
          "{}: the linears are in 4 bits already and are copied as they are, so that {} would have "
          "no effect; quantize the 16-bit model, or make one with --dequantize first",
          model_dir_.string(), key);
    }
  }

  // Quantizes dense linears; 4-bit linears stay as they are, bit for bit.
  bool Quantizes(const TensorInfo& tensor) const {
    // A linear of integers, as another program stores it, is copied.
    return !options_.dequantize && linears_.count(tensor.name) > 0 && !Stored(tensor.name) &&
           (IsFloat(tensor.dtype) || tensor.dtype.is_blocks()) && tensor.shape.size() == 2;
  }

  // The type in which a tensor is written, or a weight is to be decoded.
  TensorType OutputType(const TensorInfo& tensor) const {
    if (is_gguf_) return dense_type_;
    return IsDecodedFp8(*reader_, tensor) ? TensorType(DType::kBF16) : tensor.dtype;
  }

  BnbLayout LayoutOf(const TensorInfo& tensor) const {
    BnbLayout layout;
    layout.type = quantize_.type;
    layout.dtype = OutputType(tensor);
    layout.shape = tensor.shape;
    layout.block_size = quantize_.block_size;
    layout.double_quant = quantize_.scale_type == ScaleType::kDoubleBnb;
    return layout;
  }

  std::vector<TensorInfo> Declare() const {
    std::vector<TensorInfo> outputs;
    for (const TensorInfo& tensor : reader_->tensors()) {
      if (Quantizes(tensor)) {
        for (TensorInfo& piece : BnbTensors(tensor.name, LayoutOf(tensor))) {
          outputs.push_back(std::move(piece));
        }
      } else if (!options_.dequantize) {
        outputs.push_back(tensor);
        outputs.back().name = stored_.NameOf(tensor.name);
        outputs.back().dtype = OutputType(tensor);
        outputs.back().upper_bound = TellsSizeLast(tensor.name);
      } else if (Stored(tensor.name)) {
        const BnbLayout layout = ReadBnb(*reader_, tensor.name).layout;
        outputs.push_back({tensor.name, layout.dtype, layout.shape});
      } else if (BnbWeightOf(tensor.name).empty()) {
        outputs.push_back(tensor);
      }
    }
    return outputs;
  }

  void Convert(const TensorInfo& tensor, TensorWriter& writer) {
    if (Quantizes(tensor)) {
      QuantizeTensor(tensor, writer);
    } else if (options_.dequantize && Stored(tensor.name)) {
      DequantizeTensor(tensor, writer);
    } else if (!options_.dequantize || BnbWeightOf(tensor.name).empty()) {
      if (!options_.dequantize && TellsSizeLast(tensor.name)) writer.Shrink(tensor.elements());
      if (is_gguf_ || IsDecodedFp8(*reader_, tensor)) {
        WriteDense(tensor, writer);
      } else {
        CheckFinite(tensor);
        writer.Write(reader_->Bytes(tensor));
      }
      Count(tensor);
    }
    // Mapped pages count as memory of the process until they are given back.
    reader_->Release(tensor);
  }

  // A tensor that stays dense, in another type than the file has it. Piece by piece: an embedding
  // is the largest tensor.
  void WriteDense(const TensorInfo& tensor, TensorWriter& writer) {
    const TensorType type = OutputType(tensor);
    const std::int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    const std::int64_t rows = tensor.elements() / std::max<std::int64_t>(1, cols);
    const std::int64_t chunk =
        std::max<std::int64_t>(1, kPieceValues / std::max<std::int64_t>(1, cols));
    const std::span<const std::byte> bytes = reader_->Bytes(tensor);
    std::vector<float> values;
    std::vector<std::byte> out;
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first) * cols;
      values.resize(count);
      DecodeFloats(tensor.dtype,
                   bytes.subspan(BytesOf(tensor.dtype, first * cols), BytesOf(tensor.dtype, count)),
                   values);
      stored_.Apply(tensor.name, values);
      out.resize(BytesOf(type, count));
      const std::int64_t bad = EncodeFloats(type, values, out);
      if (bad >= 0) {
        ThrowInvalidInput("{}: tensor '{}': the value {} at index {} does not fit into {}",
                          reader_->FileOf(tensor), tensor.name, values[bad], first * cols + bad,
                          NameOf(type));
      }
      writer.Write(out);
    }
  }

  void QuantizeTensor(const TensorInfo& tensor, TensorWriter& writer) {
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t cols = tensor.shape[1];
    std::vector<std::byte> copy;
    std::vector<float> decoded;
    ConstMatrixView original{nullptr, tensor.dtype, rows, cols, cols};
    if (tensor.dtype.is_blocks()) {
      decoded.resize(static_cast<std::size_t>(tensor.elements()));
      DecodeFloats(tensor.dtype, reader_->Bytes(tensor), decoded);
      original = MakeView(decoded.data(), rows, cols);
    } else {
      original.data = AlignedValues(reader_->Bytes(tensor), tensor.dtype, copy);
    }
    QuantizeOptions options = quantize_;
    options.name = fmt::format("{}: tensor '{}'", reader_->FileOf(tensor), tensor.name);
    // error of an output = sum over columns i of (w_i - q_i)^2 E[x_i^2], where the inputs x_i are
    // taken as independent: the mean squares are the weights of the columns.
    const auto importance = calibration_.mean_squares.find(tensor.name);
    if (importance != calibration_.mean_squares.end()) options.importance = importance->second;
    const QuantizedMatrix quantized = QuantizeByRule(original, options);
    WriteBnb(writer, LayoutOf(tensor), quantized.view());
    // The written codes are decoded again and measured.
    errors_.Add(context_, tensor.name, original, quantized.view());
    Count(quantized);
  }

  // Quantizes by the rule of bitsandbytes' CPU code or of its CUDA kernels.
  QuantizedMatrix QuantizeByRule(const ConstMatrixView& w, const QuantizeOptions& options) const {
    if (options_.bnb_rule != "cuda") return Quantize(context_, w, options);
    compat::Options cuda = compat::OptionsOf(options);
    cuda.rule = compat::EncodeRule::kBnbCuda;
    return compat::ConvertToBnb(compat::Quantize(context_, w, cuda)).value();
  }

  void DequantizeTensor(const TensorInfo& tensor, TensorWriter& writer) {
    const BnbMatrix stored = ReadBnb(*reader_, tensor.name);
    const QuantizedView& view = stored.matrix.view();
    std::vector<std::byte> out(BytesOf(stored.layout.dtype, view.rows * view.cols));
    Dequantize(context_, view, {out.data(), stored.layout.dtype, view.rows, view.cols, view.cols});
    writer.Write(out);
    ReleaseBnb(*reader_, tensor.name);
    Count(stored.matrix);
  }

  // Embeddings, norms and the like; pieces of a 4-bit weight are checked where they are read.
  void CheckFinite(const TensorInfo& tensor) {
    if (!IsFloat(tensor.dtype) || !BnbWeightOf(tensor.name).empty()) return;
    const std::int64_t n = tensor.elements();
    std::vector<std::byte> copy;
    const std::byte* values = AlignedValues(reader_->Bytes(tensor), tensor.dtype, copy);
    const std::int64_t bad = FirstNonFinite(context_, {values, tensor.dtype, 1, n, n});
    if (bad < 0) return;
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", reader_->FileOf(tensor),
                      tensor.name, bad);
  }

  void Count(const QuantizedMatrix& matrix) {
    report_.quantized_values += matrix.view().size();
    report_.quantized_bytes += matrix.bytes();
  }

  void Count(const TensorInfo& tensor) {
    if (Stored(tensor.name)) {
      Count(ReadBnb(*reader_, tensor.name).matrix);
    } else if (BnbWeightOf(tensor.name).empty()) {
      report_.other_bytes += BytesOf(OutputType(tensor), tensor.elements());
      other_values_ += tensor.elements();
    }
  }

  // The modules beside the decoder, such as an image encoder, which are not quantized. Their paths
  // begin with "model." or not, by the version of transformers.
  std::set<std::string> OtherModules() const {
    std::set<std::string> modules;
    for (const TensorInfo& tensor : reader_->tensors()) {
      if (SplitDecoderName(tensor.name) || tensor.name == HeadName(*reader_)) continue;
      const std::size_t begin = tensor.name.starts_with("model.") ? 6 : 0;
      const std::size_t dot = tensor.name.find('.', begin);
      const std::string module = tensor.name.substr(begin, dot - begin);
      if (dot == std::string::npos || module == "lm_head") continue;
      modules.insert({module, "model." + module});
    }
    return modules;
  }

  void WriteConfig(const fs::path& dir) const {
    Json config = is_gguf_ ? config_json_ : ReadJsonFile(model_dir_ / "config.json");
    if (is_gguf_) config["torch_dtype"] = TorchDtypeOf(dense_type_, config_);
    if (options_.dequantize) {
      config.erase("quantization_config");
    } else {
      // transformers quantizes every nn.Linear that this list does not name: the head and the
      // routers of experts are stored in 16 bits, and must be named.
      BnbConfig bnb = {quantize_.type, quantize_.scale_type == ScaleType::kDoubleBnb, {"lm_head"}};
      for (const std::string& module : OtherModules()) bnb.skip_modules.push_back(module);
      for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
        if (!config_.has_experts(l)) continue;
        bnb.skip_modules.push_back(
            fmt::format("{}layers.{}.{}", config_.module_prefix, l, RouterName(config_)));
      }
      for (std::int64_t l = 0; config_.side_moe.num_experts > 0 && l < config_.num_hidden_layers;
           ++l) {
        bnb.skip_modules.push_back(
            fmt::format("{}layers.{}.router.proj", config_.module_prefix, l));
      }
      // Weights that were copied keep the configuration that describes them.
      const bool is_copied = config.contains("quantization_config") &&
                             !IsFp8Config(config["quantization_config"], "quantization_config");
      if (!is_copied) {
        config["quantization_config"] = FormatBnbConfig(bnb);
      }
    }
    WriteTextFile(dir / "config.json", FormatJson(config, 2) + "\n");
  }

  void Summarize() {
    report_.kinds = errors_.Kinds();
    const std::int64_t values = report_.quantized_values + other_values_;
    // Compared with the same values at 2 bytes, for every type of the source.
    report_.fp16_bytes = static_cast<std::size_t>(2 * values);
    report_.fp32_bytes = static_cast<std::size_t>(4 * values);
    report_.bits_per_weight = 8.0 * static_cast<double>(report_.quantized_bytes) /
                              static_cast<double>(report_.quantized_values);
    const auto bytes = static_cast<double>(report_.quantized_bytes + report_.other_bytes);
    report_.ratio_to_fp16 = static_cast<double>(report_.fp16_bytes) / bytes;
    report_.ratio_to_fp32 = static_cast<double>(report_.fp32_bytes) / bytes;
  }

  Context& context_;
  BackendFactory::Ptr backends_;
  const QuantizeCheckpointOptions& options_;
  const ProgressFn& progress_;
  fs::path model_dir_;
  bool is_gguf_;
  Json config_json_;                // of a GGUF file
  DType dense_type_ = DType::kF16;  // that its other tensors get
  DecoderConfig config_;
  std::unique_ptr<TensorReader> reader_;
  std::set<std::string> linears_;
  StoredValues stored_;
  QuantizeOptions quantize_;
  Calibration calibration_;
  RoundingErrors errors_;
  std::int64_t other_values_ = 0;
  QuantizeReport report_;
};

}  // namespace

QuantizeReport QuantizeCheckpoint(Context& context, const QuantizeCheckpointOptions& options,
                                  const ProgressFn& progress) {
  if (LowerCase(fs::path(options.output_dir).extension().string()) == ".gguf") {
    ThrowInvalidInput(
        "output_dir {0}: quantize writes a folder; choose a name without .gguf, or write a GGUF "
        "file: qlora export {1} {0} --outtype q4_k_m",
        options.output_dir, options.model_name_or_path);
  }
  CheckModelFolder(options.output_dir, options.overwrite_output_dir,
                   {ResolveModelDir(options.model_name_or_path)});
  return Conversion(context, options, progress).Run();
}

// The names match training, so that one YAML file serves both.
void QuantizeCheckpointOptions::Declare(OptionTable& table) {
  table.Section("Quantization");
  DeclareModelPath(table, &model_name_or_path);
  table.AddPath("output_dir", &output_dir, "directory of the new checkpoint", {"output"});
  table.Add("overwrite_output_dir", &overwrite_output_dir, "replace the checkpoint in output_dir",
            {"overwrite"});
  // The options of load_in_4bit, under the same names as in training.
  quantization.Declare(table);
  table.AddPath("calibration_data", &calibration_data,
                "text file; enables scale_search, weighted by activations on this text");
  table.Add("calibration_tokens", &calibration_tokens,
            "maximum number of tokens to read from calibration_data");
  table.Choice(
      "bnb_rule", &bnb_rule, {"cpu", "cuda"},
      "tie-breaking rule: that of bitsandbytes on this device, where two values are equally near");
  table.Add("dequantize", &dequantize, "convert a 4-bit checkpoint back into a 16-bit one");
  DeclareDevice(table, &device);
}

}  // namespace qlora
