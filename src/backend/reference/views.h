// Views as typed matrices, which the definitions of the ops work on: for backend.cc
// alone. Weights are widened into temporary storage on each call, which no other backend may do.
#ifndef QLORA_BACKEND_REFERENCE_VIEWS_H_
#define QLORA_BACKEND_REFERENCE_VIEWS_H_

#include <complex>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/int8/products.h"
#include "backend/reference/elementwise.h"
#include "backend/reference/linear.h"
#include "base/check.h"

namespace qlora::reference {

// Calls body.operator()<T>() with the T of dtype. complex128 carries a derivative in its imaginary
// part: a step of i h in one operand gives the exact gradient of the formulas (complex-step
// differentiation).
template <typename Body>
void Dispatch(const char* op, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kC128:
      return body.template operator()<std::complex<double>>();
    default:
      ThrowRuntime("{}: expected F32, F64 or C128 operands in the reference backend, found {}", op,
                   NameOf(dtype));
  }
}

// Throws unless all operands have the T of the call: activations and wide operands have one type.
inline void CheckDType(DType expected, DType found) {
  if (expected != found) {
    ThrowRuntime("reference backend: expected all operands of a call to be {}, found {}",
                 NameOf(expected), NameOf(found));
  }
}

// A view as a matrix of T over the same memory. Errors: Runtime, a bug of the caller, for another
// element type.
template <typename T>
Mat<T> Typed(const MatrixView& m) {
  if (!m.empty()) CheckDType(kDTypeOf<T>, m.dtype);
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}

template <typename T>
Mat<const T> TypedConst(const ConstMatrixView& m) {
  if (!m.empty()) CheckDType(kDTypeOf<T>, m.dtype);
  return {static_cast<const T*>(m.data), m.rows, m.cols, m.stride};
}

// Element (r, c) of a weight or table: float32, float16, bfloat16 or T.
template <typename T>
T Widened(const ConstMatrixView& m, std::int64_t r, std::int64_t c) {
  switch (m.dtype) {
    case DType::kF32:
      return static_cast<T>(m.Row<float>(r)[c]);
    case DType::kF16:
      return static_cast<T>(ToFloat(m.Row<Float16>(r)[c]));
    case DType::kBF16:
      return static_cast<T>(ToFloat(m.Row<BFloat16>(r)[c]));
    default:
      CheckDType(kDTypeOf<T>, m.dtype);
      return m.Row<T>(r)[c];
  }
}

// All (rows, cols) values of a weight. A 4-bit value is code * scale, computed in float32; values
// of ggml's blocks are defined in float32, too.
template <typename T>
std::vector<T> Widened(const WeightView& weight) {
  std::vector<T> values;
  values.reserve(weight.rows() * weight.cols());
  if (weight.form() == WeightForm::kDense) {
    for (std::int64_t r = 0; r < weight.rows(); ++r) {
      for (std::int64_t c = 0; c < weight.cols(); ++c) {
        values.push_back(Widened<T>(weight.dense, r, c));
      }
    }
    return values;
  }
  if (weight.form() == WeightForm::kBlocks) {
    std::vector<float> row(weight.cols());
    for (std::int64_t r = 0; r < weight.rows(); ++r) {
      ReadRow(weight, r, 0, weight.cols(), row.data());
      values.insert(values.end(), row.begin(), row.end());
    }
    return values;
  }
  const QuantizedView& q = weight.quantized;
  std::vector<float> scales(q.blocks());
  LoadScales(q, 0, q.blocks(), scales.data());
  for (std::int64_t i = 0; i < q.rows * q.cols; ++i) {
    // The first of two values is in the upper half of the byte.
    const int nibble = i % 2 == 0 ? q.packed[i / 2] >> 4 : q.packed[i / 2] & 15;
    values.push_back(static_cast<T>(q.code[nibble] * scales[i / q.block_size]));
  }
  return values;
}

// weight: the widened values of the linear, which must outlive the result.
template <typename T>
LinearOf<T> Typed(const LinearView& linear, const std::vector<T>& weight) {
  const std::int64_t rows = linear.weight.rows();
  const std::int64_t cols = linear.weight.cols();
  return {.weight = {weight.data(), rows, cols, cols},
          .bias = TypedConst<T>(linear.bias),
          .a = TypedConst<T>(linear.lora.a),
          .b = TypedConst<T>(linear.lora.b),
          .scale = static_cast<T>(linear.lora.scale),
          .dropout = linear.lora.dropout,
          .dropout_key = linear.lora.dropout_key};
}

// The product of each row of x (N, ...) with a quantized weight in 8 bits, by `multiply` (N, cols).
template <typename T>
std::vector<T> Int8Product(const WeightView& weight, Mat<const T> x, std::int64_t cols,
                           void (*multiply)(const int8::CodedWeight&, std::span<const float>,
                                            float*)) {
  if constexpr (std::is_same_v<T, float>) {
    const int8::CodedWeight coded(weight);
    std::vector<float> product(x.rows * cols);
    for (std::int64_t n = 0; n < x.rows; ++n) {
      multiply(coded, std::span(&x(n, 0), x.cols), product.data() + n * cols);
    }
    return product;
  } else {
    ThrowRuntime("reference backend: products in 8 bits are defined for F32 operands, found {}",
                 NameOf(kDTypeOf<T>));
  }
}

// Row `to` of y = [itself +] row `from` of x.
template <typename T>
void CopyRow(Mat<const T> x, std::int64_t from, Mat<T> y, std::int64_t to, Store store) {
  for (std::int64_t d = 0; d < x.cols; ++d) Put(store, x(from, d), y(to, d));
}

// Indices are in host memory, because this backend computes there.
inline std::span<const std::int32_t> Indices(IndexView view) {
  return {view.data, static_cast<std::size_t>(view.size)};
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_VIEWS_H_
