// Packed operands of Kernels::multiply beyond a single panel.
#ifndef QLORA_BACKEND_CPU_GEMM_PANELS_H_
#define QLORA_BACKEND_CPU_GEMM_PANELS_H_

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

// Elements between rows of a packed operand beyond its length, so that rows do not compete for the
// same cache set.
inline constexpr std::int64_t kRowGap = 32;

inline std::int64_t PackedStride(const Kernels& kernels, std::int64_t k) {
  return RoundUp(k, kernels.panel) + kRowGap;
}

// Element (row, col) of a packed rows operand.
inline std::byte* At(const MatrixView& packed, const Kernels& kernels, std::int64_t row,
                     std::int64_t col) {
  return static_cast<std::byte*>(packed.data) + (row * packed.stride + col) * kernels.bytes;
}

// Packs the columns of `in` (k, lanes) as panels of Kernels::panel lanes, one after the other. The
// last panel is as wide as its lanes, rounded up to whole vectors.
void PackPanels(const Kernels& kernels, const ConstMatrixView& in, void* panels);
// Packs the rows of `in` (lanes, k) likewise.
void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, void* panels);

// c(rows, lanes) = [c +] a * panels, for panels as PackPanels makes them. next (k', lanes): what is
// packed next, whose lines are fetched in the course of the products; or empty.
void MultiplyPanels(const Kernels& kernels, const Product& product, std::int64_t lanes,
                    const ConstMatrixView& next = {});

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_PANELS_H_
