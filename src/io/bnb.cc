#include "io/bnb.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/matrix.h"
#include "base/printable.h"
#include "base/text.h"
#include "io/json.h"
#include "io/mapped_tensors.h"

namespace qlora {
namespace {

constexpr std::size_t kLongestRepr = 24;  // "-1.7976931348623157e+308"
constexpr std::string_view kStateInfix = ".quant_state.bitsandbytes__";
// The suffixes of the tensors that are stored with a weight.
constexpr std::string_view kSuffixes[] = {".absmax",
                                          ".quant_map",
                                          ".nested_absmax",
                                          ".nested_quant_map",
                                          ".quant_state.bitsandbytes__nf4",
                                          ".quant_state.bitsandbytes__fp4"};
constexpr std::int64_t kCodes = 16;
constexpr std::int64_t kNestedCodes = 256;

constexpr std::pair<DType, const char*> kTorchNames[] = {
    {DType::kF32, "float32"}, {DType::kF16, "float16"}, {DType::kBF16, "bfloat16"}};

const char* TorchNameOf(DType dtype) {
  for (const auto& [own, name] : kTorchNames) {
    if (own == dtype) return name;
  }
  ThrowInvalidInput("a weight of type {} cannot be stored in 4 bits", NameOf(dtype));
}

const char* NameOf(QuantType type) { return type == QuantType::kNf4 ? "nf4" : "fp4"; }

// Returns the piece whose name tells the codebook and whose JSON text tells the rest.
std::string StateName(std::string_view weight, QuantType type) {
  return fmt::format("{}{}{}", weight, kStateInfix, NameOf(type));
}

// True for the block sizes that bitsandbytes' kernels exist for: powers of two from 32 to 4096.
bool IsBlockSize(std::int64_t size) {
  return size >= 32 && size <= 4096 && std::has_single_bit(static_cast<std::uint64_t>(size));
}

// Numbers of elements of the pieces, in the order of the header's list.
struct Sizes {
  std::int64_t values;
  std::int64_t packed;
  std::int64_t blocks;
  std::int64_t nested_blocks;
};

Sizes SizesOf(const BnbLayout& layout, const std::string& where) {
  const std::int64_t values = CheckedElements(layout.shape);
  if (values <= 0 || layout.shape.empty()) {
    ThrowInvalidInput("{}: shape [{}] is not possible", where, fmt::join(layout.shape, ", "));
  }
  if (!IsBlockSize(layout.block_size) ||
      (layout.double_quant && !IsBlockSize(layout.nested_block_size))) {
    ThrowInvalidInput("{}: block sizes {} and {} are not powers of two from 32 to 4096", where,
                      layout.block_size, layout.nested_block_size);
  }
  const std::int64_t blocks = BlockCount(values, layout.block_size);
  return {values, PackedBytes(values), blocks,
          layout.double_quant ? BlockCount(blocks, layout.nested_block_size) : 0};
}

// Returns the JSON text as Python's json.dumps writes it; `offset` is already text.
std::string StateText(const BnbLayout& layout, const std::string& offset) {
  std::string text = fmt::format(
      R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}])", NameOf(layout.type),
      layout.block_size, TorchNameOf(layout.dtype), fmt::join(layout.shape, ", "));
  if (layout.double_quant) {
    text +=
        fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                    layout.nested_block_size, offset);
  }
  // bitsandbytes packs this text into a tensor of bytes. Spaces and order follow json.dumps, so
  // that equal weights give equal files.
  return text + '}';
}

// Returns a piece of a weight. Errors: InvalidInput for a missing piece.
const TensorInfo& Piece(const TensorReader& reader, const std::string& weight,
                        const std::string& suffix) {
  const TensorInfo* tensor = reader.Find(weight + suffix);
  if (tensor == nullptr) {
    ThrowInvalidInput("{}: tensor '{}{}' is missing (incomplete checkpoint?)",
                      reader.FileOf(*reader.Find(weight)), weight, suffix);
  }
  return *tensor;
}

// Checks type and number of elements and returns the bytes.
const std::byte* Data(const TensorReader& reader, const TensorInfo& tensor, DType dtype,
                      std::int64_t elements) {
  // Sizes follow from shape and block sizes alone; kernels trust them and would read past the end
  // of a shorter tensor.
  if (tensor.dtype != dtype || tensor.elements() != elements) {
    ThrowInvalidInput("{}: tensor '{}': expected {} values of {}, found {} of {}",
                      reader.FileOf(tensor), tensor.name, elements, qlora::NameOf(dtype),
                      tensor.elements(), qlora::NameOf(tensor.dtype));
  }
  return reader.Bytes(tensor).data();
}

// The small float arrays of a weight that its file does not align.
using Copies = std::vector<std::vector<float>>;

const float* Floats(const TensorReader& reader, const TensorInfo& tensor, std::int64_t elements,
                    Copies& copies) {
  const std::byte* bytes = Data(reader, tensor, DType::kF32, elements);
  const float* values = reinterpret_cast<const float*>(bytes);
  // The data of a safetensors file begin at a multiple of 8 only if its header was padded, which
  // the format does not demand.
  if (reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) != 0) {
    std::vector<float>& copy = copies.emplace_back(static_cast<std::size_t>(elements));
    std::memcpy(copy.data(), bytes, copy.size() * sizeof(float));
    values = copy.data();
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    // One NaN among the scales makes a block of weights NaN, which would be noticed as a loss of
    // NaN.
    if (std::isfinite(values[i])) continue;
    ThrowInvalidInput("{}: tensor '{}': value {} is {}", reader.FileOf(tensor), tensor.name, i,
                      values[i]);
  }
  return values;
}

// Finds the JSON text of a weight. Its name ends with the type, so both types are tried.
const TensorInfo& StateTensor(const TensorReader& reader, const std::string& weight) {
  const TensorInfo* nf4 = reader.Find(StateName(weight, QuantType::kNf4));
  const TensorInfo* fp4 = reader.Find(StateName(weight, QuantType::kFp4));
  // Neither, or both: the pieces of two runs in one folder.
  if ((nf4 == nullptr) == (fp4 == nullptr)) {
    ThrowInvalidInput("tensor '{}': expected one of the tensors '{}' and '{}', found {}", weight,
                      StateName(weight, QuantType::kNf4), StateName(weight, QuantType::kFp4),
                      nf4 == nullptr ? "none" : "both");
  }
  return nf4 != nullptr ? *nf4 : *fp4;
}

// Reads the JSON text into `layout`; returns the offset, 0 without double quantization.
float ParseState(std::string_view text, const std::string& where, QuantType type, bool nested,
                 BnbLayout& layout) {
  const Json json = ParseJson(text, where, DuplicateKeys::kRefuse);
  const auto quant_type = JsonGet<std::string>(json, "quant_type", where);
  layout.type = type;
  // Name and text state the codebook twice. Decoded by the wrong one, weights look like weights.
  if (quant_type != NameOf(type)) {
    ThrowInvalidInput("{}: key 'quant_type': expected \"{}\" as in the tensor's name, found \"{}\"",
                      where, NameOf(type), quant_type);
  }
  layout.block_size = JsonGet<std::int64_t>(json, "blocksize", where);
  layout.shape = JsonGet<std::vector<std::int64_t>>(json, "shape", where);
  const auto dtype_name = JsonGet<std::string>(json, "dtype", where);
  bool is_known = false;
  for (const auto& [dtype, name] : kTorchNames) {
    if (dtype_name != name) continue;
    layout.dtype = dtype;
    is_known = true;
  }
  if (!is_known) {
    ThrowInvalidInput("{}: key 'dtype': expected float32, float16 or bfloat16, found \"{}\"", where,
                      dtype_name);
  }
  layout.double_quant = nested;
  float offset = 0;
  if (nested) {
    layout.nested_block_size = JsonGet<std::int64_t>(json, "nested_blocksize", where);
    const auto nested_dtype = JsonGet<std::string>(json, "nested_dtype", where);
    if (nested_dtype != "float32") {
      ThrowInvalidInput("{}: key 'nested_dtype': expected \"float32\", found \"{}\"", where,
                        nested_dtype);
    }
    const auto wide = JsonGet<double>(json, "nested_offset", where);
    // The conversion of a larger double is undefined. NaN and infinity are not JSON.
    if (std::abs(wide) > std::numeric_limits<float>::max()) {
      ThrowInvalidInput("{}: key 'nested_offset': {} is not a float32", where, wide);
    }
    offset = static_cast<float>(wide);
  }
  // An unknown key might change the meaning of the numbers.
  const std::string_view known =
      nested ? "quant_type blocksize dtype shape nested_blocksize nested_dtype nested_offset"
             : "quant_type blocksize dtype shape";
  for (const auto& [key, value] : json.items()) {
    if (HasWord(known, key)) continue;
    ThrowInvalidInput("{}: unknown key '{}' for a weight {} nested_absmax", where, key,
                      nested ? "with" : "without");
  }
  return offset;
}

// Who writes checkpoints of a quant_method, where its name does not tell.
std::string QuantizedBy(std::string_view method) {
  constexpr std::pair<std::string_view, std::string_view> kWriters[] = {
      {"compressed-tensors", " (integers of llm-compressor)"},
      {"modelopt", " (NVIDIA ModelOpt)"},
      {"gptq", " (GPTQModel or AutoGPTQ)"},
      {"awq", " (AutoAWQ)"},
      {"bitsandbytes", " in 8 bits"},
      {"mxfp4", " outside of gpt-oss"}};
  for (const auto& [name, writer] : kWriters) {
    if (name == method) return std::string(writer);
  }
  return "";
}

}  // namespace

bool HasQuantState(const TensorReader& reader, std::string_view weight) {
  return reader.Find(StateName(weight, QuantType::kNf4)) != nullptr ||
         reader.Find(StateName(weight, QuantType::kFp4)) != nullptr;
}

bool HoldsBnb(const TensorReader& reader) {
  const std::vector<TensorInfo>& tensors = reader.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const TensorInfo& tensor) { return HasQuantState(reader, tensor.name); });
}

// The suffix alone is not enough: a tensor "x.absmax" belongs to a weight only if "x" ends so.
std::string_view BnbWeightOf(std::string_view tensor) {
  for (const std::string_view suffix : kSuffixes) {
    if (!tensor.ends_with(suffix)) continue;
    const std::string_view weight = tensor.substr(0, tensor.size() - suffix.size());
    if (weight.ends_with(".weight") || weight == "weight") return weight;
    // A parameter of all experts of a layer.
    if (weight.ends_with(".experts.gate_up_proj") || weight.ends_with(".experts.down_proj")) {
      return weight;
    }
  }
  return {};
}

BnbMatrix ReadBnb(const TensorReader& reader, const std::string& weight) {
  const TensorInfo* packed = reader.Find(weight);
  if (packed == nullptr) ThrowInvalidInput("tensor '{}' is missing", weight);
  const TensorInfo& state = StateTensor(reader, weight);
  const std::string where = fmt::format("{}: tensor '{}'", reader.FileOf(state), state.name);
  const std::span<const std::byte> text =
      std::span(Data(reader, state, DType::kU8, state.elements()), state.bytes());
  const QuantType type = state.name.ends_with("nf4") ? QuantType::kNf4 : QuantType::kFp4;
  // Without a nested absmax, `absmax` holds the scales themselves and not their codes.
  const bool nested = reader.Find(weight + ".nested_absmax") != nullptr;

  BnbMatrix out;
  QuantizedView view;
  view.nested.offset = ParseState({reinterpret_cast<const char*>(text.data()), text.size()}, where,
                                  type, nested, out.layout);
  const Sizes sizes = SizesOf(out.layout, where);
  // bnb_4bit_quant_storage: the bytes of the codes may be declared as floats.
  const bool storable = packed->dtype == DType::kU8 || IsFloat(packed->dtype);
  if (!storable || packed->bytes() != static_cast<std::size_t>(sizes.packed)) {
    ThrowInvalidInput("{}: tensor '{}': expected {} bytes for shape [{}], found {} of {}",
                      reader.FileOf(*packed), weight, sizes.packed,
                      fmt::join(out.layout.shape, ", "), packed->bytes(),
                      qlora::NameOf(packed->dtype));
  }
  auto copies = std::make_shared<Copies>();
  copies->reserve(4);
  view.packed = reinterpret_cast<const std::uint8_t*>(reader.Bytes(*packed).data());
  view.rows = out.layout.shape[0];
  view.cols = sizes.values / view.rows;
  view.block_size = out.layout.block_size;
  view.code = Floats(reader, Piece(reader, weight, ".quant_map"), kCodes, *copies);
  const TensorInfo& absmax = Piece(reader, weight, ".absmax");
  if (nested) {
    view.scale_type = ScaleType::kDoubleBnb;
    view.scales = Data(reader, absmax, DType::kU8, sizes.blocks);
    view.nested.map =
        Floats(reader, Piece(reader, weight, ".nested_quant_map"), kNestedCodes, *copies);
    view.nested.absmax =
        Floats(reader, Piece(reader, weight, ".nested_absmax"), sizes.nested_blocks, *copies);
    view.nested.block_size = out.layout.nested_block_size;
  } else {
    view.scales = Floats(reader, absmax, sizes.blocks, *copies);
  }
  out.matrix = QuantizedMatrix(view, std::move(copies));
  return out;
}

void ReleaseBnb(const TensorReader& reader, std::string_view weight) {
  const auto release = [&](const std::string& name) {
    if (const TensorInfo* tensor = reader.Find(name)) reader.Release(*tensor);
  };
  release(std::string(weight));
  for (const std::string_view suffix : kSuffixes) release(fmt::format("{}{}", weight, suffix));
}

std::vector<TensorInfo> BnbTensors(const std::string& weight, const BnbLayout& layout) {
  const Sizes sizes = SizesOf(layout, fmt::format("tensor '{}'", weight));
  std::vector<TensorInfo> out = {
      {weight, DType::kU8, {sizes.packed, 1}},
      {weight + ".absmax", layout.double_quant ? DType::kU8 : DType::kF32, {sizes.blocks}},
      {weight + ".quant_map", DType::kF32, {kCodes}}};
  if (layout.double_quant) {
    out.push_back({weight + ".nested_absmax", DType::kF32, {sizes.nested_blocks}});
    out.push_back({weight + ".nested_quant_map", DType::kF32, {kNestedCodes}});
  }
  // With double quantization the text ends with an offset that is known after quantization only, so
  // its longest form is declared. Without, the text is known in full.
  // Digits for the offset: no number has a longer text.
  const std::string text = StateText(layout, std::string(kLongestRepr, '0'));
  out.push_back({StateName(weight, layout.type),
                 DType::kU8,
                 {static_cast<std::int64_t>(text.size())},
                 layout.double_quant});
  return out;
}

void WriteBnb(TensorWriter& writer, const BnbLayout& layout, const QuantizedView& view) {
  const Sizes sizes = SizesOf(layout, "bitsandbytes weight");
  const ScaleType scale_type = layout.double_quant ? ScaleType::kDoubleBnb : ScaleType::kF32;
  if (view.scale_type != scale_type || view.size() != sizes.values ||
      view.block_size != layout.block_size ||
      (layout.double_quant && view.nested.block_size != layout.nested_block_size)) {
    ThrowInvalidInput(
        "a weight of shape [{}] is not quantized in the form that is to be written: blocks of {}, "
        "{}",
        fmt::join(layout.shape, ", "), layout.block_size,
        layout.double_quant
            ? fmt::format("scales doubly quantized in blocks of {}", layout.nested_block_size)
            : "scales in float32");
  }
  const auto write = [&writer](const auto* data, std::int64_t count) {
    writer.Write(std::as_bytes(std::span(data, static_cast<std::size_t>(count))));
  };
  write(view.packed, sizes.packed);
  if (layout.double_quant) {
    write(static_cast<const std::uint8_t*>(view.scales), sizes.blocks);
  } else {
    write(static_cast<const float*>(view.scales), sizes.blocks);
  }
  write(view.code, kCodes);
  if (layout.double_quant) {
    write(view.nested.absmax, sizes.nested_blocks);
    write(view.nested.map, kNestedCodes);
  }
  // Last, because the length of the offset's digits is not known before; Shrink tells it.
  const std::string text = StateText(layout, PythonRepr(view.nested.offset));
  if (layout.double_quant) writer.Shrink(static_cast<std::int64_t>(text.size()));
  writer.Write(std::as_bytes(std::span(text)));
}

// Writes the keys of transformers' BitsAndBytesConfig; keys without an option have its defaults.
Json FormatBnbConfig(const BnbConfig& config) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"_load_in_4bit", true},
          {"load_in_8bit", false},
          {"_load_in_8bit", false},
          {"bnb_4bit_quant_type", NameOf(config.type)},
          {"bnb_4bit_use_double_quant", config.double_quant},
          {"bnb_4bit_compute_dtype", "bfloat16"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_skip_modules", config.skip_modules},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false}};
}

void CheckBnbConfig(const Json& json, std::string_view where) {
  const auto method = JsonGetOr<std::string>(json, "quant_method", "", where);
  // transformers writes both keys; files of some versions have the one with the underscore alone.
  const bool in_4bit = JsonGetOr<bool>(json, "load_in_4bit", false, where) ||
                       JsonGetOr<bool>(json, "_load_in_4bit", false, where);
  if (method == "bitsandbytes" && in_4bit) return;
  const bool is_mlx = method.empty() && json.is_object() && json.contains("group_size");
  ThrowInvalidInput(
      "{}: {}; supported: bitsandbytes with load_in_4bit, and fp8. Use the unquantized checkpoint "
      "of this model",
      where,
      is_mlx ? "the weights were quantized by mlx-lm, in a form of its own"
             : fmt::format("quant_method '{}' is not supported{}", method, QuantizedBy(method)));
}

}  // namespace qlora
