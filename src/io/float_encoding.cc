#include "io/float_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ggml/decode.h"
#include "ggml/encode.h"

namespace qlora {
namespace {

// A value that becomes Inf as Half is beyond its range.
template <typename Half>
std::int64_t EncodeHalves(std::span<const float> values, std::span<std::byte> out,
                          Half (*convert)(float)) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Half half = convert(values[i]);
    if (!std::isfinite(ToFloat(half))) return static_cast<std::int64_t>(i);
    std::memcpy(out.data() + i * sizeof(Half), &half, sizeof(Half));
  }
  return -1;
}

template <typename Half>
void DecodeHalves(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Half half;
    std::memcpy(&half, bytes.data() + i * sizeof(Half), sizeof(Half));
    out[i] = ToFloat(half);
  }
}

}  // namespace

std::int64_t EncodeFloats(TensorType type, std::span<const float> values, std::span<std::byte> out,
                          const float* importance) {
  QLORA_DCHECK(out.size() == BytesOf(type, values.size()));
  switch (type) {
    case DType::kF32: {
      const auto bad = std::find_if(values.begin(), values.end(),
                                    [](float value) { return !std::isfinite(value); });
      if (bad != values.end()) return bad - values.begin();
      std::memcpy(out.data(), values.data(), out.size());
      return -1;
    }
    case DType::kF16:
      return EncodeHalves<Float16>(values, out, ToFloat16);
    case DType::kBF16:
      return EncodeHalves<BFloat16>(values, out, ToBFloat16);
    case DType::kBlocks:
      return EncodeBlocks(type.format, values.data(), std::ssize(values) / type.block_values(),
                          importance, out.data());
    default:
      ThrowInvalidInput("floats cannot be stored as {}", NameOf(type));
  }
}

void DecodeFloats(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  QLORA_DCHECK(bytes.size() == BytesOf(type, out.size()));
  switch (type) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case DType::kF16:
      return DecodeHalves<Float16>(bytes, out);
    case DType::kBF16:
      return DecodeHalves<BFloat16>(bytes, out);
    case DType::kBlocks:
      return DecodeBlocks(type.format, bytes.data(), std::ssize(out) / type.block_values(),
                          out.data());
    default:
      ThrowInvalidInput("{} cannot be read as floats", NameOf(type));
  }
}

}  // namespace qlora
