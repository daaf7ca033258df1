// The cost of a 4-bit matrix in bytes and in bits per weight.
#include "quant/layout.h"

namespace qlora {

std::size_t BytesOf(const QuantizedView& q) {
  std::size_t bytes = PackedBytes(q.size()) + q.blocks() * ScaleBytes(q.scale_type);
  if (q.scale_type == ScaleType::kDoubleBnb) {
    bytes += BlockCount(q.blocks(), q.nested.block_size) * sizeof(float) + sizeof(q.nested.offset);
  }
  return bytes;
}

std::size_t QuantizedMatrix::bytes() const { return BytesOf(view_); }

double QuantizedMatrix::bits_per_weight() const {
  return 8.0 * static_cast<double>(bytes()) / static_cast<double>(view_.size());
}

double QuantizedMatrix::compression_ratio() const { return 32.0 / bits_per_weight(); }

// With blocks of B, and nested blocks of N scales: 4 + 32 / B, or 4 + (8 + 32 / N) / B.
double BitsPerWeight(const QuantizeOptions& options) {
  double per_scale = 8.0 * static_cast<double>(ScaleBytes(options.scale_type));
  if (options.scale_type == ScaleType::kDoubleBnb) {
    per_scale += 32.0 / static_cast<double>(options.scaler_block_size);
  }
  return 4 + per_scale / static_cast<double>(options.block_size);
}

}  // namespace qlora
