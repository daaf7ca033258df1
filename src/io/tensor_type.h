// How a file stores the values of a tensor: one by one, or in blocks of ggml.
#ifndef QLORA_IO_TENSOR_TYPE_H_
#define QLORA_IO_TENSOR_TYPE_H_

#include "ggml/block_format.h"
#include "qlora/tensor.h"

namespace qlora {

// Code that knows no blocks reads a TensorType as a DType, which is then kBlocks.
struct TensorType {
  constexpr TensorType(DType type = DType::kF32) : dtype(type) {}
  constexpr TensorType(BlockFormat blocks) : dtype(DType::kBlocks), format(blocks) {}

  DType dtype;
  BlockFormat format = BlockFormat::kQ8_0;  // of kBlocks

  constexpr bool is_blocks() const { return dtype == DType::kBlocks; }
  // Values that are stored together. A row is a whole number of blocks.
  std::int64_t block_values() const { return is_blocks() ? InfoOf(format).values : 1; }
  constexpr operator DType() const { return dtype; }
};

constexpr bool operator==(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && (!a.is_blocks() || a.format == b.format);
}
constexpr bool operator==(const TensorType& a, DType b) { return a.dtype == b; }

// "F32", ... or "Q4_K", ...
inline const char* NameOf(const TensorType& type) {
  return type.is_blocks() ? InfoOf(type.format).name : NameOf(type.dtype);
}

// Bytes of `count` values, a multiple of block_values().
inline std::size_t BytesOf(const TensorType& type, std::size_t count) {
  if (!type.is_blocks()) return BytesOf(type.dtype, count);
  const BlockFormatInfo& info = InfoOf(type.format);
  return count / static_cast<std::size_t>(info.values) * static_cast<std::size_t>(info.bytes);
}

}  // namespace qlora

#endif  // QLORA_IO_TENSOR_TYPE_H_
