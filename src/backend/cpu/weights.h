// Packs parts of a frozen weight, dense or 4-bit, as operands of the kernels.
#ifndef QLORA_BACKEND_CPU_WEIGHTS_H_
#define QLORA_BACKEND_CPU_WEIGHTS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/prepacked.h"

namespace qlora::cpu {

inline std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Rows [row, row + rows) and columns [col, col + cols) of a matrix.
inline ConstMatrixView Block(const ConstMatrixView& m, std::int64_t row, std::int64_t rows,
                             std::int64_t col, std::int64_t cols) {
  const auto bytes = static_cast<std::int64_t>(BytesOf(m.dtype, 1));
  return {static_cast<const char*>(m.data) + (row * m.stride + col) * bytes, m.dtype, rows, cols,
          m.stride};
}
inline MatrixView Block(const MatrixView& m, std::int64_t row, std::int64_t rows, std::int64_t col,
                        std::int64_t cols) {
  const auto bytes = static_cast<std::int64_t>(BytesOf(m.dtype, 1));
  return {static_cast<char*>(m.data) + (row * m.stride + col) * bytes, m.dtype, rows, cols,
          m.stride};
}

// Whether a weight is 4-bit, and every 64 columns of a row from a multiple of 64 on are whole bytes
// with one scale.
bool IsChunked(const WeightView& weight);

// Packs the columns of `in` (k, lanes) as panels of Kernels::panel lanes, one after the other.
void PackPanels(const Kernels& kernels, const ConstMatrixView& in, std::byte* panels);

// c(rows, lanes) = [c +] a * panels, for panels as PackPanels makes them.
void MultiplyPanels(const Kernels& kernels, const Product& product, std::int64_t lanes);

// A range of rows of a weight, read as the rows operand. Its scales are prepared once, but for
// prepacked weights, whose ranges begin and end with panels.
class WeightRows {
 public:
  // scales: room for ScaleCount(cols, rows) floats.
  WeightRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* scales);
  // Whether the rows are row-major 4-bit with whole chunks, which `chunks` then gives.
  bool is_chunked() const { return chunks_.packed != nullptr; }
  const QuantizedChunks& chunks() const { return chunks_; }

  // Columns [col, col + cols) of the rows; values: room for `cols` floats. col: a multiple of
  // kChunk if the weight has chunks, of kPrepackedGroup * kChunk if it is prepacked.
  void Pack(const Kernels& kernels, std::int64_t col, std::int64_t cols, float* values, void* out,
            std::int64_t stride) const;

  // At least one per chunk; for tables, a whole one for each nested block that the rows touch.
  static std::int64_t ScaleCount(std::int64_t cols, std::int64_t rows) {
    return RoundUp(rows * (cols / kChunk + 1), ChunkScales::kNestedBlock) +
           ChunkScales::kNestedBlock;
  }

 private:
  void PackPrepacked(const Kernels& kernels, std::int64_t col, std::int64_t cols, void* out,
                     std::int64_t stride) const;

  const WeightView& weight_;
  std::int64_t row_;
  std::int64_t rows_;
  QuantizedChunks chunks_;
};

// As multiply, with the rows of a weight as k and columns [col, col + cols), at most two chunks
// from a multiple of one, as lanes: writes c for `cols` rounded up to whole vectors. product.a has
// as many columns as the weight has rows, rounded up to Kernels::step. values: room for
// kDecodedRows * 2 * kChunk floats, scales or decoded values; panels: for as many elements. They,
// the weight and `cols` are in place of product.k, panel and width.
void MultiplyWeightPanels(const Kernels& kernels, const WeightView& weight, std::int64_t col,
                          std::int64_t cols, float* values, std::byte* panels,
                          const Product& product);

// How a weight is read, and `count` rows of x are packed for dot products with it: rows of values,
// which others are decoded to; 4-bit chunks; prepacked, beforehand or on the way.
enum class DotForm : std::uint8_t { kRows, kChunks, kPrepacked };
inline constexpr DotForm kDotForms[] = {DotForm::kRows, DotForm::kChunks, DotForm::kPrepacked};
DotForm DotFormOf(const Kernels& kernels, const WeightView& weight, std::int64_t count);
// Up to so many rows of x, dot products beat panels.
std::int64_t MostDotRows(const Kernels& kernels, DotForm form);

// Few rows of x, packed for dot products in batches of nearly the same number of rows.
struct DotOperand {
  const Kernels& kernels;
  std::int64_t count = 0;  // rows of x
  std::int64_t cols = 0;   // of x
  // Batches, for each form that Pack was called for.
  std::byte* packed[std::size(kDotForms)] = {};

  std::int64_t batches(DotForm form) const {
    const std::int64_t most = form == DotForm::kPrepacked ? kernels.prepacked_batch : kDotBatch;
    return (count + most - 1) / most;
  }
  std::int64_t First(DotForm form, std::int64_t batch) const {
    return count * batch / batches(form);
  }
  std::byte* Batch(DotForm form, std::int64_t batch) const {
    const std::int64_t elements = First(form, batch) * RoundUp(cols, kDotGroup);
    return packed[static_cast<std::size_t>(form)] +
           static_cast<std::size_t>(elements) * kernels.bytes;
  }
  void Pack(Context& context, DotForm form, const ConstMatrixView& x) const;
};

// Memory for rows of a weight.
struct RowScratch {
  float* scales;             // ScaleCount(cols, kDotWeightRows)
  float* values;             // (cols) float32
  std::byte* packed;         // packed_size elements
  std::int64_t packed_size;  // elements, at least RoundUp(cols, Kernels::step)
  std::byte* prepacked;      // PrepackedRoom(cols) bytes, aligned to 64, where rows are repacked
};

// out(m, r) = x(m) . weight(row + r) for r < rows.
void DotWeightRows(const DotOperand& x, const WeightView& weight, std::int64_t row,
                   std::int64_t rows, const RowScratch& scratch, float* out,
                   std::int64_t out_stride);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_WEIGHTS_H_
