#include "model/tensor_views.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/float_encoding.h"

namespace qlora {

void TensorView::SetFactor(float value) {
  if (value != 1) info.dtype = DType::kF32;
  factor = value;
}

namespace {

// True where the bytes of a view are not one piece of the stored tensor.
bool IsRearranged(const TensorView& view) {
  return view.transposed || view.line_step > 1 || view.factor != 1 || view.pieces.size() > 1 ||
         view.pieces.empty() || !view.pieces[0].rows.empty() || !view.columns.empty();
}

// The lines of the bytes of a single piece that are the rows of the view.
std::vector<std::byte> Lines(const TensorView& view, const std::vector<std::byte>& bytes) {
  const std::int64_t rows = view.info.shape[0];
  const std::int64_t cols = view.info.elements() / rows;
  std::vector<std::byte> out(view.info.bytes());
  if (!view.transposed) {
    const std::size_t row = BytesOf(view.info.dtype, cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(out.data() + r * row, bytes.data() + (view.first_line + r * view.line_step) * row,
                  row);
    }
    return out;
  }
  const std::int64_t stride = view.pieces[0].count / cols;
  const std::size_t size = BytesOf(view.info.dtype, 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t column = view.first_line + r * view.line_step;
    for (std::int64_t c = 0; c < cols; ++c) {
      std::memcpy(out.data() + (r * cols + c) * size, bytes.data() + (c * stride + column) * size,
                  size);
    }
  }
  return out;
}

// The values of `bytes`, which are of the type of the view's source, times its factor.
std::vector<std::byte> Scaled(const TensorView& view, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<std::size_t>(view.info.elements()));
  DecodeFloats(view.pieces[0].source->dtype, bytes, values);
  for (float& value : values) value *= view.factor;
  const std::span<const std::byte> out = std::as_bytes(std::span(values));
  return {out.begin(), out.end()};
}

// F32 values with their columns in the order of the view.
std::vector<std::byte> MovedColumns(const TensorView& view, const std::vector<std::byte>& bytes) {
  std::vector<std::byte> out(bytes.size());
  const std::size_t row = view.columns.size() * sizeof(float);
  for (std::size_t at = 0; at < bytes.size(); at += row) {
    for (std::size_t i = 0; i < view.columns.size(); ++i) {
      std::memcpy(out.data() + at + i * sizeof(float),
                  bytes.data() + at + view.columns[i] * sizeof(float), sizeof(float));
    }
  }
  return out;
}

}  // namespace

TensorViews::TensorViews(std::unique_ptr<TensorReader> stored, std::vector<TensorView> views,
                         std::vector<UnreadTensor> unread)
    : ForwardingReader(std::move(stored), std::move(unread)), views_(std::move(views)) {
  for (const TensorView& view : views_) {
    if (Find(view.info.name) != nullptr) {
      ThrowInvalidInput("{}: tensors '{}' and '{}' both are '{}'", FileOf(view.info),
                        ViewOf(view.info).pieces[0].source->name, view.pieces[0].source->name,
                        view.info.name);
    }
    Add(view.info);
  }
}

std::span<const std::byte> TensorViews::Bytes(const TensorInfo& tensor) const {
  const TensorView& view = ViewOf(tensor);
  if (!IsRearranged(view)) return StoredBytes(view.pieces[0]);
  std::vector<std::byte>& copy = copies_[tensor.name];
  if (copy.empty()) copy = Copied(view);
  return copy;
}

bool TensorViews::IsCopied(const TensorInfo& tensor) const {
  const TensorView& view = ViewOf(tensor);
  return IsRearranged(view) || stored().IsCopied(*view.pieces[0].source);
}

void TensorViews::Release(const TensorInfo& tensor) const {
  copies_.erase(tensor.name);
  for (const TensorPiece& piece : ViewOf(tensor).pieces) stored().Release(*piece.source);
}

std::string TensorViews::FileOf(const TensorInfo& tensor) const {
  const TensorView& view = ViewOf(tensor);
  return view.pieces.empty() ? std::string() : stored().FileOf(*view.pieces[0].source);
}

StoredValue TensorViews::StoredAt(const TensorInfo& tensor, std::int64_t element) const {
  const TensorView& view = ViewOf(tensor);
  std::size_t number = 0;
  if (view.transposed) {
    const TensorPiece& piece = view.pieces[0];
    const std::int64_t cols = view.info.shape[1];
    element =
        element % cols * (piece.count / cols) + view.first_line + element / cols * view.line_step;
  } else if (view.line_step > 1) {
    const std::int64_t cols = view.info.elements() / view.info.shape[0];
    element = (view.first_line + element / cols * view.line_step) * cols + element % cols;
  } else {
    while (element >= view.pieces[number].count) element -= view.pieces[number++].count;
  }
  const TensorPiece& piece = view.pieces[number];
  if (const std::int64_t cols = std::ssize(view.columns); cols > 0) {
    element = element / cols * cols + view.columns[element % cols];
  }
  if (!piece.rows.empty()) {
    const std::int64_t cols = piece.count / std::ssize(piece.rows);
    element = piece.rows[element / cols] * cols + element % cols;
  }
  return stored().StoredAt(*piece.source, piece.first + element);
}

const TensorView& TensorViews::ViewOf(const TensorInfo& tensor) const {
  const TensorInfo* own = Find(tensor.name);
  QLORA_DCHECK(own != nullptr);
  return views_[own - tensors().data()];
}

std::span<const std::byte> TensorViews::StoredBytes(const TensorPiece& piece) const {
  const TensorType type = piece.source->dtype;
  return stored()
      .Bytes(*piece.source)
      .subspan(BytesOf(type, piece.first), BytesOf(type, piece.count));
}

std::vector<std::byte> TensorViews::Copied(const TensorView& view) const {
  std::vector<std::byte> copy;
  copy.reserve(view.info.bytes());
  if (view.pieces.empty()) copy.resize(view.info.bytes());
  const bool decodes = view.factor == 1;  // otherwise Scaled does
  for (const TensorPiece& piece : view.pieces) {
    const std::span<const std::byte> bytes = StoredBytes(piece);
    if (decodes && piece.source->dtype != view.info.dtype) {
      QLORA_DCHECK(piece.rows.empty() && view.info.dtype == DType::kF32);
      std::vector<float> values(static_cast<std::size_t>(piece.count));
      DecodeFloats(piece.source->dtype, bytes, values);
      const std::span<const std::byte> decoded = std::as_bytes(std::span(values));
      copy.insert(copy.end(), decoded.begin(), decoded.end());
      continue;
    }
    if (piece.rows.empty()) {
      copy.insert(copy.end(), bytes.begin(), bytes.end());
      continue;
    }
    const std::size_t row_bytes = bytes.size() / piece.rows.size();
    for (const std::int64_t row : piece.rows) {
      const std::span<const std::byte> one = bytes.subspan(row * row_bytes, row_bytes);
      copy.insert(copy.end(), one.begin(), one.end());
    }
  }
  if (view.factor != 1) copy = Scaled(view, copy);
  if (!view.columns.empty()) return MovedColumns(view, copy);
  return view.transposed || view.line_step > 1 ? Lines(view, copy) : copy;
}

}  // namespace qlora
