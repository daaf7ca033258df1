#include "io/tensor_file.h"

#include <fmt/format.h>

#include <limits>

namespace qlora {

std::int64_t TensorInfo::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    // The largest number represents all that overflow: compared with a file or with memory, such a
    // tensor is too large, instead of being small by accident.
    if (__builtin_mul_overflow(product, size, &product)) {
      return std::numeric_limits<std::int64_t>::max();
    }
  }
  return product;
}

std::string StoredValue::Place() const {
  if (tensor->shape.size() < 2) return fmt::format("index {}", element);
  const std::int64_t cols = tensor->shape.back();
  return fmt::format("row {}, column {}", element / cols, element % cols);
}

std::size_t TensorInfo::bytes() const {
  // No type has more bytes per element.
  constexpr std::size_t kMostPerElement = 16;
  const auto count = static_cast<std::size_t>(elements());
  if (count > std::numeric_limits<std::size_t>::max() / kMostPerElement) {
    return std::numeric_limits<std::size_t>::max();
  }
  return BytesOf(dtype, count);
}

const std::vector<UnreadTensor>& TensorReader::unread() const {
  static const std::vector<UnreadTensor> none;
  return none;
}

ForwardingReader::ForwardingReader(std::unique_ptr<TensorReader> stored)
    : stored_(std::move(stored)), unread_(stored_->unread()) {}

const TensorInfo* ForwardingReader::Find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> ForwardingReader::Bytes(const TensorInfo& tensor) const {
  return stored_->Bytes(Stored(tensor));
}

bool ForwardingReader::IsCopied(const TensorInfo& tensor) const {
  return stored_->IsCopied(Stored(tensor));
}

void ForwardingReader::Release(const TensorInfo& tensor) const { stored_->Release(Stored(tensor)); }

std::string ForwardingReader::FileOf(const TensorInfo& tensor) const {
  return stored_->FileOf(Stored(tensor));
}

StoredValue ForwardingReader::StoredAt(const TensorInfo& tensor, std::int64_t element) const {
  return stored_->StoredAt(Stored(tensor), element);
}

const TensorInfo& ForwardingReader::Stored(const TensorInfo& tensor) const {
  return *stored_->Find(tensor.name);
}

TensorInfo& ForwardingReader::Add(TensorInfo tensor) {
  numbers_.emplace(tensor.name, tensors_.size());
  return tensors_.emplace_back(std::move(tensor));
}

bool IsAligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % BytesOf(dtype, 1) == 0;
}

const std::byte* AlignedValues(std::span<const std::byte> bytes, DType dtype,
                               std::vector<std::byte>& copy) {
  if (IsAligned(bytes.data(), dtype)) return bytes.data();
  copy.assign(bytes.begin(), bytes.end());
  return copy.data();
}

}  // namespace qlora
