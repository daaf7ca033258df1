// Element types and borrowed matrix views. A view owns nothing and never outlives its storage.
#ifndef QLORA_TENSOR_H_
#define QLORA_TENSOR_H_

#include <complex>
#include <cstddef>
#include <cstdint>

namespace qlora {

// 16-bit storage types; arithmetic happens after widening to float.
struct BFloat16 {
  std::uint16_t bits;  // the upper half of a float32
};
struct Float16 {
  std::uint16_t bits;  // IEEE 754 binary16
};

// kC128 exists for the complex-step gradient checks. kBlocks: bytes of blocks, which hold many
// values each; a format beside it says how many, and where (src/ggml).
enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kC128,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kBlocks,
};

// "F32", "BF16", ...: the names of the safetensors format.
const char* NameOf(DType dtype);

// Bytes of `count` elements.
std::size_t BytesOf(DType dtype, std::size_t count);

template <typename T>
struct DTypeOfImpl;
template <>
struct DTypeOfImpl<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOfImpl<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOfImpl<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOfImpl<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOfImpl<std::complex<double>> {
  static constexpr DType value = DType::kC128;
};
template <>
struct DTypeOfImpl<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOfImpl<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <typename T>
inline constexpr DType kDTypeOf = DTypeOfImpl<T>::value;

// A row-major matrix (rows, cols); consecutive rows are `stride` elements apart.
// A vector of n elements is (1, n). data == nullptr with rows == 0 means "absent".
struct ConstMatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  // in elements, >= cols

  bool empty() const { return rows == 0 || cols == 0; }
  template <typename T>
  const T* Row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * stride;
  }
};

struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  // in elements, >= cols

  bool empty() const { return rows == 0 || cols == 0; }
  template <typename T>
  T* Row(std::int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  operator ConstMatrixView() const { return {data, dtype, rows, cols, stride}; }
};

// Rows [begin, begin + count) of a view.
MatrixView Rows(const MatrixView& m, std::int64_t begin, std::int64_t count);
ConstMatrixView Rows(const ConstMatrixView& m, std::int64_t begin, std::int64_t count);

// A contiguous (rows, cols) view read as (rows * cols / new_cols, new_cols).
MatrixView Reshape(const MatrixView& m, std::int64_t new_cols);
ConstMatrixView Reshape(const ConstMatrixView& m, std::int64_t new_cols);

// A view over typed contiguous storage.
template <typename T>
MatrixView MakeView(T* data, std::int64_t rows, std::int64_t cols) {
  return {data, kDTypeOf<T>, rows, cols, cols};
}
template <typename T>
ConstMatrixView MakeView(const T* data, std::int64_t rows, std::int64_t cols) {
  return {data, kDTypeOf<T>, rows, cols, cols};
}

// Conversions between float32 and the 16-bit types: round to nearest even, NaN stays NaN.
float ToFloat(BFloat16 value);
float ToFloat(Float16 value);
BFloat16 ToBFloat16(float value);
Float16 ToFloat16(float value);

}  // namespace qlora

#endif  // QLORA_TENSOR_H_
