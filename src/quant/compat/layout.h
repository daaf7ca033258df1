// The places of blocks in a matrix of any form, and the sizes of its scales.
#ifndef QLORA_QUANT_COMPAT_LAYOUT_H_
#define QLORA_QUANT_COMPAT_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "qlora/nf4_compat.h"
#include "quant/layout.h"

namespace qlora::compat {

inline BlockRange RangeOfBlock(const View& q, std::int64_t block) {
  if (!q.row_blocks) {
    const std::int64_t begin = block * q.block_size;
    return {begin, std::min(q.block_size, q.size() - begin)};
  }
  const std::int64_t row = block / q.blocks_per_row();
  const std::int64_t col = block % q.blocks_per_row() * q.block_size;
  return {row * q.cols + col, std::min(q.block_size, q.cols - col)};
}

inline std::int64_t BlockOfIndex(const View& q, std::int64_t index) {
  if (!q.row_blocks) return index / q.block_size;
  return index / q.cols * q.blocks_per_row() + index % q.cols / q.block_size;
}

// The shape and the form of the view that QuantizeInto returns for a (rows, cols) matrix of
// `dtype`, without pointers into storage and without fields that depend on the values.
View PlanView(std::int64_t rows, std::int64_t cols, const Options& options, DType dtype);

constexpr bool IsDouble(ScaleForm form) {
  return form == ScaleForm::kDoubleBnb || form == ScaleForm::kDoubleTorchao;
}

// Bytes of one stored scale.
constexpr std::size_t ScaleBytes(ScaleForm form) {
  if (form == ScaleForm::kF32) return 4;
  return IsDouble(form) ? 1 : 2;
}

}  // namespace qlora::compat

#endif  // QLORA_QUANT_COMPAT_LAYOUT_H_
