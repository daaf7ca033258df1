// Matrices of any form: their size, and the way to and from the layout of bitsandbytes.
#include <array>
#include <utility>

#include "base/check.h"
#include "base/shape.h"
#include "quant/compat/layout.h"

namespace qlora::compat {
namespace {

// Both scale types of the core are forms.
ScaleForm FormOf(ScaleType type) {
  return type == ScaleType::kF32 ? ScaleForm::kF32 : ScaleForm::kDoubleBnb;
}

View FromBnb(const QuantizedView& q) {
  return {.packed = q.packed,
          .rows = q.rows,
          .cols = q.cols,
          .block_size = q.block_size,
          .code = q.code,
          .scale_form = FormOf(q.scale_type),
          .scales = q.scales,
          .nested = q.nested};
}

}  // namespace

Options OptionsOf(const QuantizeOptions& options) {
  return {.type = options.type,
          .block_size = options.block_size,
          .scale_form = FormOf(options.scale_type),
          .scaler_block_size = options.scaler_block_size,
          .scale_search = options.scale_search,
          .importance = options.importance,
          .name = options.name};
}

std::optional<QuantizedView> AsBnb(const View& q) {
  const bool is_float = q.scale_form == ScaleForm::kF32;
  if (q.row_blocks || q.shifts != nullptr || !(is_float || q.scale_form == ScaleForm::kDoubleBnb)) {
    return std::nullopt;
  }
  return QuantizedView{.packed = q.packed,
                       .rows = q.rows,
                       .cols = q.cols,
                       .block_size = q.block_size,
                       .code = q.code,
                       .scale_type = is_float ? ScaleType::kF32 : ScaleType::kDoubleBnb,
                       .scales = q.scales,
                       .nested = q.nested};
}

std::optional<QuantizedMatrix> ConvertToBnb(const Matrix& matrix) {
  const View& q = matrix.view();
  if (const auto view = AsBnb(q)) return QuantizedMatrix(*view, matrix.storage());
  // bitsandbytes lets blocks run on across the ends of rows and has no zero points. Neither can be
  // expressed there without new codes.
  if (q.row_blocks || q.shifts != nullptr) return std::nullopt;
  // The new scales keep the storage of the codes alive.
  using Owner = std::pair<std::shared_ptr<const void>, std::vector<float>>;
  auto owner = std::make_shared<Owner>(matrix.storage(), std::vector<float>(q.blocks()));
  LoadScales(q, 0, q.blocks(), owner->second.data());
  View with_floats = q;
  with_floats.scale_form = ScaleForm::kF32;
  with_floats.scales = owner->second.data();
  with_floats.nested = {};
  return QuantizedMatrix(*AsBnb(with_floats), std::move(owner));
}

Matrix::Matrix(View view, std::shared_ptr<const void> storage)
    : view_(view), storage_(std::move(storage)) {
  CountValues("compat::Matrix", std::array{view.rows, view.cols});
  for (const std::int64_t size : {view.block_size, view.nested.block_size}) {
    if (size >= 1 && size <= kMostValues) continue;
    ThrowInvalidInput("compat::Matrix: expected block sizes from 1 to 2^48, found {}", size);
  }
}

Matrix::Matrix(const QuantizedMatrix& matrix)
    : view_(FromBnb(matrix.view())), storage_(matrix.storage()) {}

std::size_t Matrix::bytes() const {
  const View& q = view_;
  std::size_t bytes = PackedBytes(q.size()) + q.blocks() * ScaleBytes(q.scale_form);
  if (IsDouble(q.scale_form)) {
    bytes += BlockCount(q.blocks(), q.nested.block_size) * sizeof(float) + sizeof(q.nested.offset);
  }
  if (q.shifts != nullptr) bytes += q.blocks() * sizeof(float);
  return bytes;
}

double Matrix::bits_per_weight() const {
  return 8.0 * static_cast<double>(bytes()) / static_cast<double>(view_.size());
}

double Matrix::compression_ratio() const { return 32.0 / bits_per_weight(); }

// With blocks of B, s bits per stored scale and nested blocks of N scales:
//   4 + (s + 32 / N (double quantization) + 32 (zero points)) / B.
double BitsPerWeight(const Options& options) {
  double per_scale = 8.0 * static_cast<double>(ScaleBytes(options.scale_form));
  if (IsDouble(options.scale_form)) {
    per_scale += 32.0 / static_cast<double>(options.scaler_block_size);
  }
  if (options.zero_point) per_scale += 32;
  return 4 + per_scale / static_cast<double>(options.block_size);
}

}  // namespace qlora::compat
