#include "model/weight_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "io/bnb.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "quant/layout.h"

namespace qlora {

void WeightReader::Begin(Carver& carver, bool read) {
  place_.emplace(backend_, options_.use, carver, read);
  tensors_.Begin(read ? options_.progress : nullptr);
  owners_.clear();
}

WeightView WeightReader::HostView(const TensorInfo& tensor, const void* data, std::int64_t rows,
                                  std::int64_t cols) const {
  if (!tensor.dtype.is_blocks()) return ConstMatrixView{data, tensor.dtype, rows, cols, cols};
  const BlockFormat format = tensor.dtype.format;
  return BlockView{format, static_cast<const std::byte*>(data), rows, cols};
}

WeightView WeightReader::HostRows(const TensorInfo& tensor, const void* data, std::int64_t first,
                                  std::int64_t count, std::int64_t cols) const {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (bytes != nullptr) bytes += BytesOf(tensor.dtype, first * cols);
  return HostView(tensor, bytes, count, cols);
}

WeightView WeightReader::AsStored(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols,
                                  WeightUse use) {
  // Values in another order than the file's are a copy, which the plan does not need and which
  // goes away.
  const bool is_copied = reader_.IsCopied(tensor);
  const void* data = is_copied && !read() ? nullptr : reader_.Bytes(tensor).data();
  const WeightView host = HostView(tensor, data, rows, cols);
  CheckFinite(host, tensor);
  const std::size_t before = place_->mapped();
  const WeightView placed = is_copied ? place_->Copy(host) : place_->Place(host, use);
  if (read() && place_->mapped() == before) reader_.Release(tensor);
  return placed;
}

void WeightReader::CheckFinite(const WeightView& weight, const TensorInfo& tensor) {
  if (!read()) return;
  const std::int64_t bad = FirstNonFinite(context_, weight);
  if (bad < 0) return;
  ThrowNotFinite(tensor, bad);
}

void WeightReader::ThrowNotFinite(const TensorInfo& tensor, std::int64_t element) const {
  const StoredValue bad = reader_.StoredAt(tensor, element);
  ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at {}{}", reader_.FileOf(tensor),
                    bad.tensor->name, bad.Place(), tensor.dtype.is_blocks() ? " or behind it" : "");
}

const std::string& WeightReader::StoredName(const TensorInfo& tensor) const {
  return reader_.StoredAt(tensor, 0).tensor->name;
}

WeightView WeightReader::RowsInFile(const TensorInfo& tensor, std::int64_t rows,
                                    std::int64_t cols) {
  // Decoded, the table has no place in the file.
  if (reader_.IsCopied(tensor)) return AsStored(tensor, rows, cols, WeightUse::kTraining);
  const void* const data = reader_.Bytes(tensor).data();
  const WeightView host = HostView(tensor, data, rows, cols);
  // Its pages are given back as it is read.
  const std::int64_t piece = std::max<std::int64_t>(1, 16 * kPieceValues / cols);
  for (std::int64_t row = 0; read() && row < rows; row += piece) {
    const std::int64_t count = std::min(piece, rows - row);
    const std::int64_t bad = FirstNonFinite(context_, HostRows(tensor, data, row, count, cols));
    if (bad >= 0) ThrowNotFinite(tensor, row * cols + bad);
    reader_.Release(tensor);
  }
  return place_->PlaceRows(host);
}

WeightView WeightReader::Table(const std::string& name, std::int64_t rows, WeightUse use) {
  return Table(tensors_.Get(name, {rows, config_.hidden_size}), rows, use);
}

WeightView WeightReader::Table(const TensorInfo& tensor, std::int64_t rows, WeightUse use) {
  const WeightView table = AsStored(tensor, rows, config_.hidden_size, use);
  // The pages of rows that are used in place come back as the rows are used.
  if (read() && use == WeightUse::kTraining) reader_.Release(tensor);
  return table;
}

WeightView WeightReader::Head() {
  return Table(HeadName(reader_), config_.vocab_size, options_.use);
}

ConstMatrixView WeightReader::Wide(const std::string& name, std::int64_t size, double shift,
                                   double factor) {
  return Wide(tensors_.Get(name, {size}), 1, size, shift, factor);
}

ConstMatrixView WeightReader::Wide(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols,
                                   double shift, double factor) {
  if (tensor.dtype.is_blocks()) {
    ThrowInvalidInput("{}: '{}' is stored as {}, expected F32, F16 or BF16", reader_.FileOf(tensor),
                      StoredName(tensor), NameOf(tensor.dtype));
  }
  const MatrixView out = place_->carver().Matrix(options_.wide, rows, cols);
  if (!read()) return out;
  const std::int64_t size = rows * cols;
  std::vector<std::byte> host(BytesOf(options_.wide, size));
  const MatrixView values{host.data(), options_.wide, 1, size, size};
  ConvertToWide(reader_.Bytes(tensor).data(), tensor.dtype, shift, values, factor);
  for (std::int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(RealAt(values, i))) ThrowNotFinite(tensor, i);
  }
  backend_.memory().Upload(host.data(), out.data, host.size());
  return out;
}

ConstMatrixView WeightReader::Constant(std::int64_t size, float value) {
  return Vector(size, std::vector<float>(static_cast<std::size_t>(size), value));
}

ConstMatrixView WeightReader::Vector(std::int64_t size, const std::vector<float>& values) {
  const MatrixView out = place_->carver().Matrix(options_.wide, 1, size);
  if (read()) UploadWide(backend_.memory(), values, out);
  return out;
}

std::vector<float> WeightReader::Values(const TensorInfo& tensor) {
  if (!read()) return {};
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  DecodeFloats(tensor.dtype, reader_.Bytes(tensor), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) ThrowNotFinite(tensor, static_cast<std::int64_t>(i));
  }
  return values;
}

WeightView WeightReader::Weight(const std::string& path, const LinearShape& shape) {
  const std::string name = path + ".weight";
  if (HasQuantState(reader_, name)) return Stored(name, shape);
  const TensorInfo& tensor = tensors_.Get(name, {shape.out, shape.in});
  if (tensor.dtype.is_blocks()) block_formats_.insert(NameOf(tensor.dtype));
  if (!options_.load_in_4bit || tensors_.is_quantized()) {
    return AsStored(tensor, shape.out, shape.in, options_.use);
  }
  QuantizeOptions quantize = options_.quantize;
  quantize.name = StoredName(tensor);
  const std::size_t bytes = StorageBytes(shape.out, shape.in, quantize);
  const MatrixView storage =
      place_->carver().Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
  if (!read()) return place_->Prepacked(PlanQuantized(shape.out, shape.in, quantize));
  std::vector<std::byte> copy;
  const std::byte* values = AlignedValues(reader_.Bytes(tensor), tensor.dtype, copy);
  const ConstMatrixView dense{values, tensor.dtype, shape.out, shape.in, shape.in};
  const QuantizedView view = Quantized(tensor, dense, quantize, storage);
  // The dense values are not needed again: one dense tensor at a time is in memory.
  reader_.Release(tensor);
  return place_->Prepacked(view);
}

WeightView WeightReader::Stored(const std::string& name, const LinearShape& shape) {
  BnbMatrix stored = tensors_.GetFourBit(name, shape.out, shape.in);
  stored_4bit_ = {stored.layout.type == QuantType::kFp4 ? "fp4" : "nf4", stored.layout.double_quant,
                  stored.layout.block_size};
  const QuantizedView view = stored.matrix.view();
  // Small arrays that the file does not align are copies, which live as long as the weights.
  owners_.push_back(std::make_shared<BnbMatrix>(std::move(stored)));
  const WeightView weight = place_->PlaceFourBit(view);
  // Pages that were not copied are small and are read again, as are rows that DoRA reads, once.
  if (read() && place_->generates()) ReleaseBnb(reader_, name);
  return weight;
}

FrozenLinear WeightReader::Linear(const std::string& path, const LinearShape& shape, bool bias) {
  FrozenLinear linear{path, Weight(path, shape), {}};
  if (bias) linear.bias = Wide(path + ".bias", shape.out);
  return linear;
}

std::vector<FrozenLinear> WeightReader::Stack(const std::string& name,
                                              const std::vector<std::string>& paths,
                                              const LinearShape& shape) {
  const std::int64_t experts = std::ssize(paths);
  const TensorInfo& tensor = tensors_.Get(name, {experts, shape.out, shape.in});
  const bool is_copied = reader_.IsCopied(tensor);
  const void* data = is_copied && !read() ? nullptr : reader_.Bytes(tensor).data();
  const WeightView all = HostView(tensor, data, experts * shape.out, shape.in);
  if (tensor.dtype.is_blocks()) block_formats_.insert(NameOf(tensor.dtype));
  const bool quantizes = options_.load_in_4bit && !tensors_.is_quantized();
  if (!quantizes) CheckFinite(all, tensor);
  std::vector<FrozenLinear> linears;
  for (std::int64_t e = 0; e < experts; ++e) {
    linears.push_back({paths[e], {}, {}});
    const WeightView one = HostRows(tensor, data, e * shape.out, shape.out, shape.in);
    if (!quantizes) {
      linears.back().weight = is_copied ? place_->Copy(one) : place_->Place(one, options_.use);
      continue;
    }
    const MatrixView storage = place_->carver().Matrix(
        DType::kU8, 1,
        static_cast<std::int64_t>(StorageBytes(shape.out, shape.in, options_.quantize)));
    linears.back().weight =
        place_->Prepacked(read() ? QuantizedPart(tensor, one.dense, storage)
                                 : PlanQuantized(shape.out, shape.in, options_.quantize));
  }
  if (read() && quantizes) reader_.Release(tensor);
  return linears;
}

QuantizedView WeightReader::Quantized(const TensorInfo& tensor, const ConstMatrixView& dense,
                                      const QuantizeOptions& options, const MatrixView& storage) {
  try {
    return backend_.Quantize(dense, options, storage);
  } catch (const Error&) {
    // Quantize knows the rows of the model, not those of the file.
    CheckFinite(dense, tensor);
    throw;
  }
}

QuantizedView WeightReader::QuantizedPart(const TensorInfo& tensor, ConstMatrixView part,
                                          const MatrixView& storage) {
  std::vector<std::byte> copy;
  part.data = AlignedValues(
      {static_cast<const std::byte*>(part.data), BytesOf(part.dtype, part.rows * part.cols)},
      part.dtype, copy);
  QuantizeOptions quantize = options_.quantize;
  quantize.name = StoredName(tensor);
  return Quantized(tensor, part, quantize, storage);
}

}  // namespace qlora
