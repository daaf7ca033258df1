#include "backend/cpu/delta/delta_panels.h"

#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/gemm/store_tile.h"
#include "base/matrix.h"

namespace qlora::cpu {
namespace {

// c (rows, part.width) = [c +] a times the rows [row, row + a.cols) of one part of b.
void MultiplyPart(const Kernels& kernels, const Left& a, const Panels::Part& b, std::int64_t row,
                  bool add, float* c, std::int64_t stride) {
  kernels.multiply({.rows = a.rows,
                    .k = a.cols,
                    .width = b.width,
                    .a = a.data,
                    .a_stride = a.stride,
                    .panel = b.Row(row),
                    .c = c,
                    .c_stride = stride,
                    .add = add});
}

}  // namespace

Panels CarvePanels(Carver& carver, const Kernels& kernels, std::int64_t rows, std::int64_t lanes) {
  const MatrixView room = carver.Matrix(DType::kF32, rows, RoundUp(lanes, kernels.vector));
  return {static_cast<float*>(room.data), rows, lanes, kernels.panel, kernels.vector};
}

void MultiplyInto(const Kernels& kernels, const Left& a, const Panels& b, bool add,
                  const Panels& to) {
  b.ForEachPart([&](const Panels::Part& part) {
    MultiplyPart(kernels, a, part, 0, add, to.data + part.lane * to.rows, part.width);
  });
}

void MultiplyInto(const Kernels& kernels, const Left& a, const Panels& b, bool add, float* to,
                  std::int64_t stride) {
  b.ForEachPart([&](const Panels::Part& part) {
    MultiplyPart(kernels, a, part, 0, add, to + part.lane, stride);
  });
}

// The parts of a are added one after the other.
void MultiplyInto(const Kernels& kernels, const Panels& a, const Panels& b, bool add, float* to,
                  std::int64_t stride) {
  b.ForEachPart([&](const Panels::Part& right) {
    a.ForEachPart([&](const Panels::Part& left) {
      MultiplyPart(kernels, {left.data, left.width, a.rows, left.lanes}, right, left.lane,
                   add || left.lane > 0, to + right.lane, stride);
    });
  });
}

void TransposeInto(const Kernels& kernels, const Panels& from, const Panels& to) {
  to.ForEachPart([&](const Panels::Part& out) {
    from.ForEachPart([&](const Panels::Part& in) {
      kernels.pack_panel_of_rows({in.Row(out.lane), DType::kF32, out.lanes, in.lanes, in.width},
                                 out.Row(in.lane), out.width);
    });
  });
}

void LoadPanels(const Kernels& kernels, const ConstMatrixView& m, const Panels& to) {
  to.ForEachPart([&](const Panels::Part& part) {
    kernels.pack_panel_of_columns(Columns(m, part.lane, part.lanes), part.data, part.width);
  });
}

void StorePanels(const Panels& from, const MatrixView& m) {
  from.ForEachPart([&](const Panels::Part& part) {
    StoreTile(part.data, part.width, false, Columns(m, part.lane, part.lanes));
  });
}

}  // namespace qlora::cpu
