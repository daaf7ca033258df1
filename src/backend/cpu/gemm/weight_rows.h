// Packs parts of a frozen weight, dense or 4-bit, as operands of the kernels.
#ifndef QLORA_BACKEND_CPU_GEMM_WEIGHT_ROWS_H_
#define QLORA_BACKEND_CPU_GEMM_WEIGHT_ROWS_H_

#include "backend/backend.h"
#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

// Returns whether a weight is 4-bit and consists of whole chunks: 64 columns of a row, from a
// multiple of 64 on, are whole bytes with one scale.
bool IsChunked(const WeightView& weight);

// A range of rows of a weight, read as the rows operand. Its scales are prepared once, except the
// scales of prepacked weights, whose ranges begin and end with panels.
class WeightRows {
 public:
  // scales: room for ScaleCount(cols, rows) floats.
  WeightRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* scales);
  // True when the rows are row-major 4-bit with whole chunks, which `chunks` then returns.
  bool is_chunked() const { return chunks_.packed != nullptr; }
  const QuantizedChunks& chunks() const { return chunks_; }

  // Packs columns [col, col + cols) of the rows; values: room for `cols` floats. col: a multiple of
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

// Columns [col, col + cols) of a weight: at most two chunks, from a multiple of kChunk on.
struct WeightColumns {
  const WeightView& weight;
  std::int64_t col;
  std::int64_t cols;
};

// As multiply, with the rows of a weight as k and some of its columns as lanes: writes c for `cols`
// rounded up to whole vectors. product.a has as many columns as the weight has rows, rounded up to
// Kernels::step; product.k, panel and width are not read. values: room for kDecodedRows * 2 *
// kChunk floats, which become scales or decoded values; panels: room for as many elements.
void MultiplyWeightColumns(const Kernels& kernels, const WeightColumns& columns, float* values,
                           void* panels, const Product& product);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_WEIGHT_ROWS_H_
