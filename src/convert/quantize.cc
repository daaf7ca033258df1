// `quantize`: a 16-bit checkpoint becomes a bitsandbytes 4-bit one, and back, tensor by tensor.
#include "qlora/quantize.h"

#include <algorithm>
#include <map>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "base/memory_info.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "convert/calibration.h"
#include "convert/config_json.h"
#include "convert/model_folder.h"
#include "convert/quantize_plan.h"
#include "convert/rounding_errors.h"
#include "hub/hub_cache.h"
#include "io/bnb.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/quantization.h"
#include "model/shared_options.h"
#include "qlora/context.h"
#include "qlora/nf4_compat.h"
#include "qlora/options.h"
#include "quant/first_non_finite.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

class Conversion {
 public:
  Conversion(Context& context, const QuantizeCheckpointOptions& options, const ProgressFn& progress)
      : context_(context),
        backends_(BackendFactory::ForJob(context, options.device)),
        options_(options),
        progress_(progress),
        plan_(options),
        reader_(plan_.reader()) {}

  QuantizeReport Run() {
    const Stopwatch watch;
    report_.notes = plan_.Check(context_, *backends_->Make(context_, DType::kF32));
    // Before calibration, which takes minutes: an impossible shape is found first.
    const std::vector<TensorInfo> outputs = plan_.Outputs();
    if (!options_.calibration_data.empty()) {
      calibration_ = Calibrate(context_, *backends_->Make(context_, DType::kF32), plan_.model_dir(),
                               plan_.config(), options_.calibration_data,
                               options_.calibration_tokens, progress_);
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
        dir.path(), outputs, plan_.is_gguf() ? StringMap() : reader_.metadata(), kMaxShardBytes);
    std::int64_t done = 0;
    for (const TensorInfo& tensor : reader_.tensors()) {
      Convert(tensor, *writer);
      if (progress_) progress_(++done, static_cast<std::int64_t>(reader_.tensors().size()));
    }
    writer->Finish();
    if (plan_.gguf_type() == DType::kF32) report_.notes.push_back(plan_.stored_values().Note());
    Json config = plan_.ConfigJson();
    report_.notes.push_back(DropUnwrittenMtp(outputs, plan_.config(), config));
    WriteTextFile(dir.path() / "config.json", FormatJson(config, 2) + "\n");
    report_.notes.push_back(dir.CopyCompanions(plan_.model_dir()));
    std::erase(report_.notes, "");
    for (const auto& [name, text] : options_.extra_files) WriteTextFile(dir.path() / name, text);
    // Only a complete folder takes the name of the output.
    dir.Commit();
  }

  void Convert(const TensorInfo& tensor, TensorWriter& writer) {
    if (plan_.Quantizes(tensor)) {
      QuantizeTensor(tensor, writer);
    } else if (options_.dequantize && plan_.IsStoredIn4Bits(tensor.name)) {
      DequantizeTensor(tensor, writer);
    } else if (!options_.dequantize || BnbWeightOf(tensor.name).empty()) {
      if (!options_.dequantize && plan_.TellsSizeLast(tensor.name))
        writer.Shrink(tensor.elements());
      if (plan_.is_gguf() || IsDecodedFp8(reader_, tensor)) {
        WriteDense(tensor, writer);
      } else {
        CheckFinite(tensor);
        writer.Write(reader_.Bytes(tensor));
      }
      Count(tensor);
    }
    // Mapped pages count as memory of the process until they are given back.
    reader_.Release(tensor);
  }

  // A tensor that stays dense, in another type than the file has it. Piece by piece: an embedding
  // is the largest tensor.
  void WriteDense(const TensorInfo& tensor, TensorWriter& writer) {
    const TensorType type = plan_.OutputType(tensor);
    const std::int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    const std::int64_t rows = tensor.elements() / std::max<std::int64_t>(1, cols);
    const std::int64_t chunk =
        std::max<std::int64_t>(1, kPieceValues / std::max<std::int64_t>(1, cols));
    const std::span<const std::byte> bytes = reader_.Bytes(tensor);
    std::vector<float> values;
    std::vector<std::byte> out;
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first) * cols;
      values.resize(count);
      DecodeFloats(tensor.dtype,
                   bytes.subspan(BytesOf(tensor.dtype, first * cols), BytesOf(tensor.dtype, count)),
                   values);
      plan_.stored_values().Apply(tensor.name, values);
      out.resize(BytesOf(type, count));
      const std::int64_t bad = EncodeFloats(type, values, out);
      if (bad >= 0) {
        ThrowInvalidInput("{}: tensor '{}': the value {} at index {} does not fit into {}",
                          reader_.FileOf(tensor), tensor.name, values[bad], first * cols + bad,
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
      DecodeFloats(tensor.dtype, reader_.Bytes(tensor), decoded);
      original = MakeView(decoded.data(), rows, cols);
    } else {
      original.data = AlignedValues(reader_.Bytes(tensor), tensor.dtype, copy);
    }
    QuantizeOptions options = plan_.quantize();
    options.name = fmt::format("{}: tensor '{}'", reader_.FileOf(tensor), tensor.name);
    // error of an output = sum over columns i of (w_i - q_i)^2 E[x_i^2], where the inputs x_i are
    // taken as independent: the mean squares are the weights of the columns.
    const auto importance = calibration_.mean_squares.find(tensor.name);
    if (importance != calibration_.mean_squares.end()) options.importance = importance->second;
    const QuantizedMatrix quantized = QuantizeByRule(original, options);
    WriteBnb(writer, plan_.LayoutOf(tensor), quantized.view());
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
    const BnbMatrix stored = ReadBnb(reader_, tensor.name);
    const QuantizedView& view = stored.matrix.view();
    std::vector<std::byte> out(BytesOf(stored.layout.dtype, view.rows * view.cols));
    Dequantize(context_, view, {out.data(), stored.layout.dtype, view.rows, view.cols, view.cols});
    writer.Write(out);
    ReleaseBnb(reader_, tensor.name);
    Count(stored.matrix);
  }

  // Embeddings, norms and the like; pieces of a 4-bit weight are checked where they are read.
  void CheckFinite(const TensorInfo& tensor) {
    if (!IsFloat(tensor.dtype) || !BnbWeightOf(tensor.name).empty()) return;
    const std::int64_t n = tensor.elements();
    std::vector<std::byte> copy;
    const std::byte* values = AlignedValues(reader_.Bytes(tensor), tensor.dtype, copy);
    const std::int64_t bad = FirstNonFinite(context_, {values, tensor.dtype, 1, n, n});
    if (bad < 0) return;
    ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", reader_.FileOf(tensor),
                      tensor.name, bad);
  }

  void Count(const QuantizedMatrix& matrix) {
    report_.quantized_values += matrix.view().size();
    report_.quantized_bytes += matrix.bytes();
  }

  void Count(const TensorInfo& tensor) {
    if (plan_.IsStoredIn4Bits(tensor.name)) {
      Count(ReadBnb(reader_, tensor.name).matrix);
    } else if (BnbWeightOf(tensor.name).empty()) {
      report_.other_bytes += BytesOf(plan_.OutputType(tensor), tensor.elements());
      other_values_ += tensor.elements();
    }
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
  QuantizePlan plan_;
  const TensorReader& reader_;
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
  table.Add("quantize_experts", &quantize_experts,
            "also quantize experts: for this program and Unsloth, not for transformers 5");
  table.Add("dequantize", &dequantize, "convert a 4-bit checkpoint back into a 16-bit one");
  DeclareDevice(table, &device);
}

}  // namespace qlora
