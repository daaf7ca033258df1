#include "io/fp8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/matrix.h"
#include "base/text.h"
#include "io/float_encoding.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr std::string_view kWeight = "weight";

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::array<float, 256> MakeValues() {
  std::array<float, 256> values;
  for (int i = 0; i < 256; ++i) values[i] = FromE4M3(static_cast<std::uint8_t>(i));
  return values;
}

// The size of blocks that cut `size` values into `count` parts, or 0. Several sizes may: the power
// of two among them, of which there is one at most, is what programs write.
std::int64_t BlockSize(std::int64_t size, std::int64_t count) {
  if (count < 1 || count > size) return 0;
  if (count == 1) return size;
  for (std::int64_t block = 1; block < size; block *= 2) {
    if ((size + block - 1) / block == count) return block;
  }
  return size % count == 0 ? size / count : 0;
}

std::int64_t Parts(std::int64_t size, std::int64_t block) {
  return block < 1 ? 0 : (size + block - 1) / block;
}

// A weight and what its values are multiplied by.
struct ScaledWeight {
  const TensorInfo* weight = nullptr;  // of the stored tensors, [out, in] or [E, out, in]
  const TensorInfo* scale = nullptr;
  std::int64_t block_rows = 0;
  std::int64_t block_cols = 0;

  std::int64_t rows() const { return weight->shape[weight->shape.size() - 2]; }
  std::int64_t cols() const { return weight->shape.back(); }
};

// What programs put behind the name of a weight.
constexpr std::string_view kScales[] = {"_scale_inv", "_scale"};
constexpr std::string_view kInputScales[] = {"activation_scale", "input_scale"};

// The parts of compressed-tensors' configuration that say how weights are stored.
std::vector<const Json*> CompressedWeights(const Json& json, std::string_view where) {
  std::vector<const Json*> all;
  const Json* groups = FindJson(json, "config_groups", where);
  if (groups == nullptr || !groups->is_object()) return all;
  for (const auto& [name, group] : groups->items()) {
    if (const Json* weights = FindJson(group, "weights", where)) all.push_back(weights);
  }
  return all;
}

// The numbers of "128x64", another spelling of a list; none of another text.
std::vector<std::int64_t> SizesIn(const std::string& text) {
  const std::size_t x = text.find('x');
  const auto rows = ParseNumber<std::int64_t>(text.substr(0, x));
  const auto cols = ParseNumber<std::int64_t>(x == text.npos ? "" : text.substr(x + 1));
  return rows && cols ? std::vector<std::int64_t>{*rows, *cols} : std::vector<std::int64_t>{};
}

// What compressed-tensors calls the form of weights of which zeros are left out; "" for others.
std::string SparseForm(const Json& json, std::string_view where) {
  const Json* sparsity = FindJson(json, "sparsity_config", where);
  if (sparsity == nullptr || !sparsity->is_object()) return "";
  const auto form = JsonGetOr<std::string>(*sparsity, "format", "dense", where);
  return form == "dense" ? "" : form;
}

bool IsFloat8(const Json& weights, std::string_view where) {
  return JsonGetOr<std::string>(weights, "type", "int", where) == "float" &&
         JsonGetOr<std::int64_t>(weights, "num_bits", 8, where) == 8;
}

bool IsScaleType(const TensorType& type) {
  return IsFloat(type) || type == DType::kU8 || type == Float8::kE8M0;
}

class DecodedFp8 : public ForwardingReader {
 public:
  DecodedFp8(std::unique_ptr<TensorReader> stored, const Fp8Blocks& blocks)
      : ForwardingReader(std::move(stored)), blocks_(blocks) {
    std::set<std::string, std::less<>> hidden;
    for (const TensorInfo& tensor : this->stored().tensors()) {
      if (tensor.dtype != Float8::kE4M3) continue;
      ScaledWeight weight;
      const std::string reason = Pair(tensor, weight);
      if (weight.scale != nullptr) hidden.insert(weight.scale->name);
      if (tensor.name.ends_with(kWeight)) {
        const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
        for (const std::string_view scale : kInputScales)
          hidden.insert(module + std::string(scale));
      }
      if (reason.empty()) {
        weights_.emplace(tensor.name, weight);
      } else {
        AddUnread({tensor.name, reason});
      }
    }
    for (const TensorInfo& tensor : this->stored().tensors()) {
      const bool is_weight = weights_.contains(tensor.name);
      if (hidden.contains(tensor.name)) continue;
      if (tensor.dtype == Float8::kE4M3 && !is_weight) continue;
      TensorInfo& shown = Add(tensor);
      if (is_weight) shown.dtype = DType::kF32;
    }
  }

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    const auto weight = weights_.find(tensor.name);
    if (weight == weights_.end()) return ForwardingReader::Bytes(tensor);
    std::vector<float>& copy = copies_[tensor.name];
    const auto size = static_cast<std::size_t>(tensor.elements());
    if (copy.empty()) {
      // Memory that was used before is there already; new memory takes longer than the decoding.
      if (spare_.size() < size) spare_ = std::vector<float>(size);
      Decode(weight->second, std::span(spare_).first(size));
      copy = std::move(spare_);
      spare_.clear();
    }
    return std::as_bytes(std::span(copy).first(size));
  }
  bool IsCopied(const TensorInfo& tensor) const override {
    return weights_.contains(tensor.name) || ForwardingReader::IsCopied(tensor);
  }
  void Release(const TensorInfo& tensor) const override {
    if (const auto copy = copies_.find(tensor.name); copy != copies_.end()) {
      if (copy->second.size() > spare_.size()) spare_ = std::move(copy->second);
      copies_.erase(copy);
    }
    ForwardingReader::Release(tensor);
  }
  void Trim() const override {
    spare_ = {};
    ForwardingReader::Trim();
  }

 private:
  // Finds the scale of a weight. Returns why the weight cannot be read, or "".
  std::string Pair(const TensorInfo& weight, ScaledWeight& out) const {
    const std::string place = fmt::format("{}: tensor '{}'", stored().FileOf(weight), weight.name);
    out.weight = &weight;
    for (const std::string_view scale : kScales) {
      if (out.scale == nullptr) out.scale = stored().Find(fmt::format("{}{}", weight.name, scale));
    }
    if (out.scale == nullptr) {
      return fmt::format(
          "{} is F8_E4M3 and its scale '{}{}' is missing, without which its values have no "
          "meaning; download the checkpoint again, or use one in 16 bits",
          place, weight.name, kScales[0]);
    }
    const std::size_t dims = weight.shape.size();
    if (dims != 2 && dims != 3) {
      return fmt::format("{} is F8_E4M3 of shape {}, expected a matrix [out, in]", place,
                         ShapeText(weight.shape));
    }
    if (!IsScaleType(out.scale->dtype)) {
      return fmt::format("{}: its scale '{}' is {}, expected F32, BF16, F16, F8_E8M0 or U8", place,
                         out.scale->name, NameOf(out.scale->dtype));
    }
    std::vector<std::int64_t> scales = out.scale->shape;
    if (dims == 3 && out.scale->elements() != 1) {
      if (scales.empty() || scales[0] != weight.shape[0])
        scales = {-1, -1};
      else
        scales.erase(scales.begin());
    }
    if (FindBlocks(scales, out)) return "";
    return Refusal(place, out);
  }

  // scales: the shape of those of one matrix.
  bool FindBlocks(const std::vector<std::int64_t>& scales, ScaledWeight& out) const {
    const std::int64_t rows = out.rows();
    const std::int64_t cols = out.cols();
    const auto is = [&](const std::vector<std::int64_t>& shape) { return scales == shape; };
    out.block_rows = rows;
    out.block_cols = cols;
    // One number, also of several experts.
    if (is({}) || is({1}) || is({1, 1}) || out.scale->elements() == 1) return true;
    if (is({rows}) || is({rows, 1})) {
      out.block_rows = 1;
      // Blocks of that many columns or more, where config.json says so: [out, 1] all the same.
      if (!states_blocks() || is({rows}) || !FitsStated(scales, rows, cols)) return true;
    }
    if (scales.size() != 2) return false;
    if (states_blocks()) {
      out.block_rows = blocks_.rows;
      out.block_cols = blocks_.cols;
      return FitsStated(scales, rows, cols);
    }
    out.block_rows = BlockSize(rows, scales[0]);
    out.block_cols = BlockSize(cols, scales[1]);
    return out.block_rows > 0 && out.block_cols > 0;
  }

  bool states_blocks() const { return blocks_.rows > 0; }
  bool FitsStated(const std::vector<std::int64_t>& scales, std::int64_t rows,
                  std::int64_t cols) const {
    return scales[0] == Parts(rows, blocks_.rows) && scales[1] == Parts(cols, blocks_.cols);
  }

  std::string Refusal(const std::string& place, const ScaledWeight& weight) const {
    const std::int64_t block_rows = states_blocks() ? blocks_.rows : 128;
    const std::int64_t block_cols = states_blocks() ? blocks_.cols : 128;
    return fmt::format(
        "{} of shape {}: its scale '{}' has shape {}, expected [], [1], [{}, 1], or a number for "
        "each block, such as [{}, {}] for {}blocks of {} x {}",
        place, ShapeText(weight.weight->shape), weight.scale->name, ShapeText(weight.scale->shape),
        weight.rows(), Parts(weight.rows(), block_rows), Parts(weight.cols(), block_cols),
        states_blocks() ? "weight_block_size of config.json, " : "", block_rows, block_cols);
  }

  std::vector<float> ScalesOf(const ScaledWeight& weight) const {
    const TensorInfo& scale = *weight.scale;
    std::vector<float> scales(static_cast<std::size_t>(scale.elements()));
    const std::span<const std::byte> bytes = stored().Bytes(scale);
    if (IsFloat(scale.dtype)) {
      DecodeFloats(scale.dtype, bytes, scales);
    } else {
      // 255 is NaN in F8_E8M0.
      for (std::size_t i = 0; i < scales.size(); ++i) {
        const int byte = std::to_integer<int>(bytes[i]);
        scales[i] = byte == 255 ? NAN : std::ldexp(1.0f, byte - 127);
      }
    }
    stored().Release(scale);
    const auto bad = std::ranges::find_if(scales, [](float s) { return !std::isfinite(s); });
    if (bad != scales.end()) {
      ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", stored().FileOf(scale),
                        scale.name, bad - scales.begin());
    }
    return scales;
  }

  // values: one for each of the weight.
  void Decode(const ScaledWeight& weight, std::span<float> values) const {
    const std::vector<float> scales = ScalesOf(weight);
    const std::span<const std::byte> bytes = stored().Bytes(*weight.weight);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const std::int64_t cols = weight.cols();
    if (values.empty()) return;  // one of the dimensions may be huge
    const std::int64_t per_row = Parts(cols, weight.block_cols);
    const std::int64_t per_matrix = Parts(weight.rows(), weight.block_rows) * per_row;
    const bool is_one = scales.size() == 1;
    const std::int64_t all_rows = std::ssize(values) / cols;
    for (std::int64_t r = 0; r < all_rows; ++r) {
      const std::int64_t matrix = r / weight.rows();
      const std::int64_t row = r % weight.rows();
      const float* scale =
          scales.data() + (is_one ? 0 : matrix * per_matrix + row / weight.block_rows * per_row);
      for (std::int64_t first = 0; first < cols; first += weight.block_cols) {
        const std::int64_t end = std::min(first + weight.block_cols, cols);
        const float factor = *scale++;
        for (std::int64_t c = first; c < end; ++c) {
          values[r * cols + c] = values_[codes[r * cols + c]] * factor;
        }
      }
    }
  }

  Fp8Blocks blocks_;  // as config.json states them
  std::array<float, 256> values_ = MakeValues();
  std::map<std::string, ScaledWeight, std::less<>> weights_;
  // May be larger than their tensors.
  mutable std::map<std::string, std::vector<float>, std::less<>> copies_;
  mutable std::vector<float> spare_;  // of a tensor that was released, for the next
};

}  // namespace

float FromE4M3(std::uint8_t byte) {
  const int exponent = (byte >> 3) & 15;
  const int mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

bool HoldsFp8(const TensorReader& reader) {
  return std::ranges::any_of(
      reader.tensors(), [](const TensorInfo& tensor) { return tensor.dtype == Float8::kE4M3; });
}

std::unique_ptr<TensorReader> WithDecodedFp8(std::unique_ptr<TensorReader> stored,
                                             const Fp8Blocks& blocks) {
  if (!HoldsFp8(*stored)) return stored;
  return std::make_unique<DecodedFp8>(std::move(stored), blocks);
}

bool IsDecodedFp8(const TensorReader& reader, const TensorInfo& tensor) {
  return tensor.dtype == DType::kF32 && tensor.elements() > 0 &&
         reader.StoredAt(tensor, 0).tensor->dtype == Float8::kE4M3;
}

bool IsFp8Config(const Json& json, std::string_view where) {
  const auto method = JsonGetOr<std::string>(json, "quant_method", "", where);
  if (method == "compressed-tensors") {
    if (const std::string form = SparseForm(json, where); !form.empty()) {
      ThrowInvalidInput(
          "{}: the weights are sparse (sparsity_config, {}, of llm-compressor), which is not "
          "supported; use the checkpoint that it was made from",
          where, form);
    }
    const std::vector<const Json*> weights = CompressedWeights(json, where);
    return !weights.empty() &&
           std::ranges::all_of(weights, [&](const Json* group) { return IsFloat8(*group, where); });
  }
  if (method == "modelopt") {
    return JsonGetOr<std::string>(json, "quant_algo", "", where).starts_with("FP8");
  }
  if (method != "fp8" && method != "fbgemm_fp8") return false;
  const auto format = JsonGetOr<std::string>(json, "fmt", "e4m3", where);
  if (format == "e4m3") return true;
  ThrowInvalidInput("{}: fmt '{}' of quant_method fp8 is not supported; supported: e4m3", where,
                    format);
}

Fp8Blocks Fp8BlocksOf(const Json& json, std::string_view where) {
  const char* key = "weight_block_size";
  const Json* size = FindJson(json, key, where);
  for (const Json* weights : CompressedWeights(json, where)) {
    if (size != nullptr) break;
    key = "block_structure";
    size = FindJson(*weights, key, where);
  }
  if (size == nullptr) return {};
  const auto numbers = size->is_string() ? SizesIn(size->get<std::string>())
                                         : JsonAs<std::vector<std::int64_t>>(*size, key, where);
  if (numbers.size() == 2 && numbers[0] > 0 && numbers[1] > 0) return {numbers[0], numbers[1]};
  ThrowInvalidInput("{}: key '{}': expected the rows and columns of a block, found [{}]", where,
                    key, fmt::join(numbers, ", "));
}

}  // namespace qlora
