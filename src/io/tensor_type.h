// How a file stores the values of a tensor: one by one, or in blocks of ggml.
#ifndef QLORA_IO_TENSOR_TYPE_H_
#define QLORA_IO_TENSOR_TYPE_H_

#include <cstdint>

#include "ggml/block_format.h"
#include "qlora/tensor.h"

namespace qlora {

// Numbers of 8 bits, which files alone have (io/fp8.h).
enum class Float8 : std::uint8_t {
  kNone,
  kE4M3,  // F8_E4M3
  kE8M0,  // F8_E8M0, powers of two
};

// Code that knows no blocks reads a TensorType as a DType, which is then kBlocks; code that knows
// no numbers of 8 bits reads their bytes as kU8.
struct TensorType {
  constexpr TensorType(DType type = DType::kF32) : dtype(type) {}
  constexpr TensorType(BlockFormat blocks) : dtype(DType::kBlocks), format(blocks) {}
  constexpr TensorType(Float8 numbers) : dtype(DType::kU8), float8(numbers) {}

  DType dtype;
  BlockFormat format = BlockFormat::kQ8_0;  // of kBlocks
  Float8 float8 = Float8::kNone;            // of kU8

  constexpr bool is_blocks() const { return dtype == DType::kBlocks; }
  // Values that are stored together. A row is a whole number of blocks.
  std::int64_t block_values() const { return is_blocks() ? InfoOf(format).values : 1; }
  constexpr operator DType() const { return dtype; }
};

constexpr bool operator==(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.float8 == b.float8 && (!a.is_blocks() || a.format == b.format);
}
constexpr bool operator==(const TensorType& a, DType b) {
  return a.dtype == b && a.float8 == Float8::kNone;
}
constexpr bool operator==(const TensorType& a, Float8 b) { return a == TensorType(b); }

// "F32", ... or "Q4_K", ...
inline const char* NameOf(const TensorType& type) {
  if (type.float8 == Float8::kE4M3) return "F8_E4M3";
  if (type.float8 == Float8::kE8M0) return "F8_E8M0";
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
