// Quantization to the layout of bitsandbytes, and its storage size. The layout is one of the forms
// of qlora/nf4_compat.h, which do the work.
#include "qlora/nf4_compat.h"
#include "quant/compat/layout.h"

namespace qlora {

std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  return compat::StorageBytes(rows, cols, compat::OptionsOf(options));
}

QuantizedView PlanQuantized(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  // Never empty: QuantizeOptions can ask for forms of bitsandbytes alone. The type of the weight
  // counts for torchao's rule, which these options lack, so any may be named.
  return *compat::AsBnb(compat::PlanView(rows, cols, compat::OptionsOf(options), DType::kF32));
}

QuantizedView QuantizeInto(Context& context, ConstMatrixView w, const QuantizeOptions& options,
                           std::span<std::byte> storage) {
  return *compat::AsBnb(compat::QuantizeInto(context, w, compat::OptionsOf(options), storage));
}

QuantizedMatrix Quantize(Context& context, ConstMatrixView w, const QuantizeOptions& options) {
  return *compat::ConvertToBnb(compat::Quantize(context, w, compat::OptionsOf(options)));
}

std::size_t BytesOf(const QuantizedView& q) { return QuantizedMatrix(q, nullptr).bytes(); }

std::size_t QuantizedMatrix::bytes() const { return compat::Matrix(*this).bytes(); }

double QuantizedMatrix::bits_per_weight() const { return compat::Matrix(*this).bits_per_weight(); }

double QuantizedMatrix::compression_ratio() const {
  return compat::Matrix(*this).compression_ratio();
}

double BitsPerWeight(const QuantizeOptions& options) {
  return compat::BitsPerWeight(compat::OptionsOf(options));
}

DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales,
                                           std::int64_t scaler_block_size) {
  return compat::DoubleQuantizeScales(scales, compat::ScaleForm::kDoubleBnb, scaler_block_size);
}

void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, std::int64_t scaler_block_size, std::span<float> out) {
  compat::DequantizeScales(codes, nested_scales, offset, compat::ScaleForm::kDoubleBnb,
                           scaler_block_size, out);
}

}  // namespace qlora
