// Matrices of float32 that are stored as the panels that Kernels::multiply reads, and their
// products. Results are in the same form, so that one product reads what another one wrote.
#ifndef QLORA_BACKEND_CPU_DELTA_DELTA_PANELS_H_
#define QLORA_BACKEND_CPU_DELTA_DELTA_PANELS_H_

#include <cstdint>

#include "backend/cpu/gemm/kernels.h"
#include "base/arena.h"

namespace qlora::cpu {

// A (rows, lanes) matrix in parts of at most Kernels::panel lanes, one after the other; a part is
// row-major. Lanes that fill a part up to whole vectors hold 0.
struct Panels {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t lanes = 0;
  std::int64_t panel = 0;   // lanes of a part, at most
  std::int64_t vector = 0;  // lanes of a vector

  struct Part {
    float* data;         // of the first row
    std::int64_t lane;   // the first one
    std::int64_t lanes;  // that the matrix has
    std::int64_t width;  // with those that fill it up: from one row to the next

    float* Row(std::int64_t row) const { return data + row * width; }
  };
  // Calls body(part) for all parts.
  template <typename Body>
  void ForEachPart(const Body& body) const {
    for (std::int64_t lane = 0; lane < lanes; lane += panel) {
      const std::int64_t count = lanes - lane < panel ? lanes - lane : panel;
      body(Part{data + lane * rows, lane, count, (count + vector - 1) / vector * vector});
    }
  }
  // Floats of all parts.
  std::int64_t size() const { return rows * ((lanes + vector - 1) / vector * vector); }
  // The first `count` rows of a matrix that has room for them, which moves its parts.
  Panels WithRows(std::int64_t count) const { return {data, count, lanes, panel, vector}; }
};

// Room for a matrix, or the matrix itself.
Panels CarvePanels(Carver& carver, const Kernels& kernels, std::int64_t rows, std::int64_t lanes);

// A row-major float32 matrix on the left of a product.
struct Left {
  const float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// to = [to +] a b, where to is a panel matrix.
void MultiplyInto(const Kernels& kernels, const Left& a, const Panels& b, bool add,
                  const Panels& to);
// The same, where to is row-major with room for b.lanes rounded up to whole vectors.
void MultiplyInto(const Kernels& kernels, const Left& a, const Panels& b, bool add, float* to,
                  std::int64_t stride);
void MultiplyInto(const Kernels& kernels, const Panels& a, const Panels& b, bool add, float* to,
                  std::int64_t stride);

// to(i, j) = from(j, i)
void TransposeInto(const Kernels& kernels, const Panels& from, const Panels& to);

// Rows of a matrix of (m.rows, m.cols) as panels, and back.
void LoadPanels(const Kernels& kernels, const ConstMatrixView& m, const Panels& to);
void StorePanels(const Panels& from, const MatrixView& m);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_DELTA_DELTA_PANELS_H_
