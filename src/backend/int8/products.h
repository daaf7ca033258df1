// The definition of products with the codes of codes.h, as scalar loops: the reference backend runs
// it, and kernels equal it bit for bit.
#ifndef QLORA_BACKEND_INT8_PRODUCTS_H_
#define QLORA_BACKEND_INT8_PRODUCTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/int8/codes.h"

namespace qlora::int8 {

// All codes of a weight (rows, cols).
struct CodedWeight {
  explicit CodedWeight(const WeightView& weight);

  std::int64_t rows;
  std::int64_t cols;
  std::vector<std::int8_t> codes;  // (rows, cols)
  std::vector<float> scales;       // (rows)
  std::vector<float> values;       // (rows, cols): what the codes stand for, exactly
  std::vector<float> excess;       // (rows, cols), or empty: no row has any
};

// The codes of a row of activations.
struct CodedRow {
  explicit CodedRow(std::span<const float> values);

  std::vector<std::int8_t> codes;
  std::vector<float> scales;         // of each group
  std::vector<std::int64_t> spikes;  // columns, ascending
};

// y = x W^T for one row x (cols) -> y (rows).
void Multiply(const CodedWeight& weight, std::span<const float> x, float* y);
// dx = dy W for one row dy (rows) -> dx (cols).
void MultiplyTransposed(const CodedWeight& weight, std::span<const float> dy, float* dx);

}  // namespace qlora::int8

#endif  // QLORA_BACKEND_INT8_PRODUCTS_H_
