// Scales of every form: reading, and double quantization on plain arrays.
#include <cmath>

#include "base/check.h"
#include "quant/compat/layout.h"
#include "quant/compat/torchao.h"
#include "quant/dynamic_map.h"

namespace qlora::compat {
namespace {

void CheckScheme(ScaleForm scheme) {
  if (IsDouble(scheme)) return;
  ThrowInvalidInput("double quantization: expected the scheme kDoubleBnb or kDoubleTorchao");
}

// Errors (InvalidInput): no scales, scales that are not finite, scaler_block_size < 1.
void CheckScales(std::span<const float> scales, std::int64_t scaler_block_size) {
  if (scaler_block_size < 1 || scales.empty()) {
    ThrowInvalidInput(
        "double quantization: expected a scaler block of at least 1 and at least one scale, found "
        "a scaler block of {} and {} scales",
        scaler_block_size, scales.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    // One NaN would make the mean NaN, and so all codes.
    if (!std::isfinite(scales[i])) {
      ThrowInvalidInput("double quantization: scale {} is {}, expected finite scales", i,
                        scales[i]);
    }
  }
}

// Errors (InvalidInput): numbers of codes and nested scales that do not belong to n scales.
void CheckScaleCodes(std::int64_t codes, std::int64_t nested_scales, std::int64_t scaler_block_size,
                     std::int64_t n) {
  // Without this check a short array of nested scales is read beyond its end.
  if (scaler_block_size < 1 || codes != n || nested_scales != BlockCount(n, scaler_block_size)) {
    ThrowInvalidInput(
        "dequantize_scales: {} codes and {} nested scales do not belong to {} scales in blocks of "
        "{}",
        codes, nested_scales, n, scaler_block_size);
  }
}

}  // namespace

// bitsandbytes' forms are loaded by the core, which needs no more of the view than its scales.
void LoadScales(const View& q, std::int64_t first, std::int64_t count, float* out) {
  if (const auto bnb =
          AsBnb({.scale_form = q.scale_form, .scales = q.scales, .nested = q.nested})) {
    // View of no rows: LoadScales reads scales and nested scales alone.
    return qlora::LoadScales(*bnb, first, count, out);
  }
  for (std::int64_t b = first; b < first + count; ++b) {
    if (q.scale_form == ScaleForm::kF16) {
      *out++ = ToFloat(static_cast<const Float16*>(q.scales)[b]);
    } else if (q.scale_form == ScaleForm::kBF16) {
      *out++ = ToFloat(static_cast<const BFloat16*>(q.scales)[b]);
    } else {
      *out++ = TorchaoScale(q, b);
    }
  }
}

DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales, ScaleForm scheme,
                                           std::int64_t scaler_block_size, EncodeRule rule,
                                           DType arithmetic) {
  CheckScheme(scheme);
  CheckScales(scales, scaler_block_size);
  DoubleQuantizedScales result;
  result.codes.resize(scales.size());
  result.nested_scales.resize(BlockCount(std::ssize(scales), scaler_block_size));
  const ScaleCodes out = {result.codes.data(), result.nested_scales.data(), scaler_block_size};
  if (scheme == ScaleForm::kDoubleTorchao) {
    result.offset = DoubleQuantizeTorchao(scales, arithmetic, out);
  } else {
    // The two programs of bitsandbytes differ on midpoints alone; equal bytes need the right one.
    const MapTie tie = rule == EncodeRule::kBnbCuda ? MapTie::kEven : MapTie::kLower;
    result.offset = DoubleQuantize(nullptr, scales, tie, out);
  }
  return result;
}

void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, ScaleForm scheme, std::int64_t scaler_block_size,
                      std::span<float> out, DType arithmetic) {
  CheckScheme(scheme);
  CheckScaleCodes(std::ssize(codes), std::ssize(nested_scales), scaler_block_size, std::ssize(out));
  const View q = {.scale_form = scheme,
                  .scales = codes.data(),
                  .nested = {.map = DynamicMap::Signed().values().data(),
                             .absmax = nested_scales.data(),
                             .block_size = scaler_block_size,
                             .offset = offset},
                  .scale_arithmetic = arithmetic};
  LoadScales(q, 0, std::ssize(out), out.data());
}

}  // namespace qlora::compat
