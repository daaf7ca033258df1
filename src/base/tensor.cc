// Element types, their sizes and conversions, and views of rows.
//
//             sign  exponent  mantissa
//   float32     1      8         23
//   bfloat16    1      8          7    the upper half of a float32
//   float16     1      5         10
#include "qlora/tensor.h"

#include <bit>

#include "base/check.h"

namespace qlora {
namespace {

// How values of a type are stored.
struct DTypeTraits {
  const char* name;
  std::size_t bytes;  // of one element
};

constexpr DTypeTraits TraitsOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {"F64", 8};
    case DType::kF32:
      return {"F32", 4};
    case DType::kF16:
      return {"F16", 2};
    case DType::kBF16:
      return {"BF16", 2};
    case DType::kC128:
      return {"C128", 16};
    case DType::kI64:
      return {"I64", 8};
    case DType::kI32:
      return {"I32", 4};
    case DType::kI16:
      return {"I16", 2};
    case DType::kI8:
      return {"I8", 1};
    case DType::kU8:
      return {"U8", 1};
    case DType::kBool:
      return {"BOOL", 1};
    case DType::kBlocks:
      return {"BLOCKS", 1};
  }
  return {"?", 0};
}

// Row `begin` is begin * stride elements after row 0.
template <typename View>
View RowsOf(const View& m, std::int64_t begin, std::int64_t count) {
  QLORA_DCHECK(begin >= 0 && count >= 0 && begin + count <= m.rows);
  View out = m;
  out.rows = count;
  using Byte = std::conditional_t<std::is_same_v<View, MatrixView>, char, const char>;
  out.data = static_cast<Byte*>(m.data) +
             static_cast<std::ptrdiff_t>(BytesOf(m.dtype, 1)) * begin * m.stride;
  return out;
}

// Only rows that follow one another without a gap can be read as rows of another length.
template <typename View>
View ReshapeOf(const View& m, std::int64_t new_cols) {
  QLORA_DCHECK((m.rows <= 1 || m.stride == m.cols) && (m.rows * m.cols) % new_cols == 0);
  View out = m;
  out.rows = m.rows * m.cols / new_cols;
  out.cols = out.stride = new_cols;
  return out;
}

}  // namespace

const char* NameOf(DType dtype) { return TraitsOf(dtype).name; }

std::size_t BytesOf(DType dtype, std::size_t count) { return count * TraitsOf(dtype).bytes; }

MatrixView Rows(const MatrixView& m, std::int64_t begin, std::int64_t count) {
  return RowsOf(m, begin, count);
}
ConstMatrixView Rows(const ConstMatrixView& m, std::int64_t begin, std::int64_t count) {
  return RowsOf(m, begin, count);
}
MatrixView Reshape(const MatrixView& m, std::int64_t new_cols) { return ReshapeOf(m, new_cols); }
ConstMatrixView Reshape(const ConstMatrixView& m, std::int64_t new_cols) {
  return ReshapeOf(m, new_cols);
}

float ToFloat(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

BFloat16 ToBFloat16(float value) {
  // Round to nearest even: 0x7fff is half of the last kept bit, less one, and one more is added if
  // the last kept bit is set. A carry into the exponent gives the next power of two, or Inf. A NaN
  // keeps its upper bits with the quiet bit set, because its lower bits may be all that it has.
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  bits += 0x7fff + ((bits >> 16) & 1);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

float ToFloat(Float16 value) {
  // Sign 1 bit, exponent 5 (bias 15), mantissa 10, to 1, 8 (bias 127) and 23: the exponent grows by
  // 112. Subnormals are mantissa * 2^-24.
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1f;
  const std::uint32_t mantissa = value.bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

Float16 ToFloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};  // >= 65520
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal; adding 0.5 rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000))};
  }
  // 0x38000000 is 112 in the exponent field. The 13 bits that go are rounded as in ToBFloat16.
  const std::uint32_t rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

}  // namespace qlora
