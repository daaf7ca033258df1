#include "linear/linear_file.h"

#include <algorithm>

#include "base/check.h"
#include "io/bnb.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace qlora {
namespace {

// The names that PyTorch gives the weight of a layer, with its pieces of bitsandbytes next to it.
constexpr const char* kWeight = "weight";
constexpr const char* kConfigKey = "qlora_config";

// The configuration as text. The form of the weight is not repeated: its tensors tell it.
std::string ConfigText(const QLoraConfig& config) {
  return Json{{"r", config.r},
              {"lora_alpha", config.lora_alpha},
              {"lora_dropout", config.lora_dropout},
              {"use_rslora", config.use_rslora},
              {"seed", static_cast<std::int64_t>(config.seed)},
              {"compute_dtype", NameOf(config.compute)},
              {"int8_backward", config.int8_backward}}
      .dump();
}

// The inverse of ConfigText; errors name the key.
QLoraConfig ParseConfig(const std::string& text, const std::string& where) {
  const Json json = ParseJson(text, where);
  QLoraConfig config;
  config.r = JsonGet<std::int64_t>(json, "r", where);
  config.lora_alpha = JsonGet<double>(json, "lora_alpha", where);
  config.lora_dropout = JsonGet<double>(json, "lora_dropout", where);
  config.use_rslora = JsonGet<bool>(json, "use_rslora", where);
  config.seed = static_cast<std::uint64_t>(JsonGet<std::int64_t>(json, "seed", where));
  const auto compute = JsonGet<std::string>(json, "compute_dtype", where);
  for (const DType known : {DType::kF32, DType::kBF16, DType::kI8}) {
    if (compute == NameOf(known)) config.compute = known;
  }
  if (compute != NameOf(config.compute)) {
    ThrowInvalidInput("{}: key 'compute_dtype': expected F32, BF16 or I8, found \"{}\"", where,
                      compute);
  }
  config.int8_backward = JsonGetOr(json, "int8_backward", false, where);  // older files have none
  return config;
}

// The weight as the file holds it.
QuantizedView BnbView(const compat::View& weight) {
  if (const auto view = compat::AsBnb(weight)) return *view;
  ThrowInvalidInput(
      "QLoraLinear: a weight of shape ({}, {}) is not quantized in a form that bitsandbytes holds: "
      "blocks that run on across rows, scales in float32 or doubly quantized, no zero points",
      weight.rows, weight.cols);
}

// A weight that was quantized elsewhere tells its type by its codebook only.
BnbLayout LayoutOf(const QLoraConfig& config, const QuantizedView& view) {
  const bool is_fp4 = std::equal(kFp4Codebook.begin(), kFp4Codebook.end(), view.code);
  BnbLayout layout;
  layout.type = is_fp4 ? QuantType::kFp4 : config.quantize.type;
  layout.dtype = DType::kF32;
  layout.shape = {view.rows, view.cols};
  layout.block_size = view.block_size;
  layout.double_quant = view.scale_type == ScaleType::kDoubleBnb;
  layout.nested_block_size = view.nested.block_size;
  return layout;
}

// A float32 matrix of the file. The reader's files are aligned where this program wrote them.
ConstMatrixView Matrix(const TensorReader& reader, const std::string& name, std::int64_t rows,
                       std::int64_t cols) {
  const TensorInfo* tensor = reader.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("tensor '{}' is missing", name);
  const std::byte* data = reader.Bytes(*tensor).data();
  // Without the product, which a rank that the file makes up could overflow.
  const std::int64_t elements = tensor->elements();
  const bool fits = cols > 0 && elements % cols == 0 && elements / cols == rows;
  if (tensor->dtype != DType::kF32 || !fits || !IsAligned(data, DType::kF32)) {
    ThrowInvalidInput(
        "{}: tensor '{}': expected aligned values of F32 for shape [{}, {}], found {} of {}",
        reader.FileOf(*tensor), name, rows, cols, elements, NameOf(tensor->dtype));
  }
  return {data, DType::kF32, rows, cols, cols};
}

}  // namespace

// All tensors are declared before the first is written; they are written in the same order.
void SaveLinear(const std::filesystem::path& file, const LinearParts& parts) {
  const QuantizedView view = BnbView(parts.weight.view());
  const BnbLayout layout = LayoutOf(parts.config, view);
  std::vector<TensorInfo> tensors = BnbTensors(kWeight, layout);
  const auto declare = [&](const char* name, std::vector<std::int64_t> shape) {
    tensors.push_back({name, DType::kF32, std::move(shape)});
  };
  if (!parts.bias.empty()) declare("bias", {view.rows});
  declare("lora_A.weight", {parts.a.rows, parts.a.cols});
  declare("lora_B.weight", {parts.b.rows, parts.b.cols});
  const std::unique_ptr<TensorWriter> writer =
      CreateSafetensors(file, tensors, {{kConfigKey, ConfigText(parts.config)}});
  WriteBnb(*writer, layout, view);
  writer->Write(std::as_bytes(parts.bias));
  for (const ConstMatrixView& m : {parts.a, parts.b}) {
    writer->Write({static_cast<const std::byte*>(m.data), BytesOf(m.dtype, m.rows * m.cols)});
  }
  writer->Finish();
}

LinearParts LoadLinear(const std::filesystem::path& file) {
  LinearParts parts;
  parts.reader = OpenSafetensors(file);
  const std::string where = fmt::format("{}: metadata '{}'", file.string(), kConfigKey);
  const auto text = parts.reader->metadata().find(kConfigKey);
  if (text == parts.reader->metadata().end()) {
    ThrowInvalidInput("{} is missing; expected a file written by QLoraLinear::Save", where);
  }
  parts.config = ParseConfig(text->second, where);
  // Shapes of A and B follow from the weight and the rank; Matrix refuses others.
  const BnbMatrix stored = ReadBnb(*parts.reader, kWeight);
  const QuantizedView& view = stored.matrix.view();
  // The views point into the file, so the weight keeps it open.
  using Owner = std::pair<std::shared_ptr<const TensorReader>, QuantizedMatrix>;
  parts.weight = QuantizedMatrix(view, std::make_shared<Owner>(parts.reader, stored.matrix));
  // The form of the weight follows from its tensors, so that it cannot contradict them.
  parts.config.quantize.type = stored.layout.type;
  parts.config.quantize.block_size = view.block_size;
  parts.config.quantize.scale_type = view.scale_type;
  parts.config.quantize.scaler_block_size = view.nested.block_size;
  if (parts.reader->Find("bias") != nullptr) {
    const ConstMatrixView bias = Matrix(*parts.reader, "bias", 1, view.rows);
    parts.bias = std::span(bias.Row<float>(0), view.rows);
  }
  parts.a = Matrix(*parts.reader, "lora_A.weight", parts.config.r, view.cols);
  parts.b = Matrix(*parts.reader, "lora_B.weight", view.rows, parts.config.r);
  return parts;
}

}  // namespace qlora
