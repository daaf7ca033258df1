// A frozen weight (O, I) in one of a closed list of forms:
//
//   form       formats                        a block            where it is described
//   kDense     F32, F16, BF16 (F64, C128)     one value          qlora/tensor.h
//   kFourBit   NF4, FP4 of bitsandbytes       runs over rows     qlora/nf4.h
//   kBlocks    25 formats of ggml             inside a row       ggml/block_format.h
//
// Each backend has one door through which any form becomes numbers, and faster paths for forms that
// it knows (CONTRIBUTING.md, "a weight format"). Outside of src/backend nobody asks for the form:
// ReadRow is the door of the host.
#ifndef QLORA_BACKEND_WEIGHT_H_
#define QLORA_BACKEND_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "ggml/block_format.h"
#include "qlora/nf4.h"
#include "qlora/tensor.h"
#include "quant/layout.h"

namespace qlora {

// A borrowed matrix (rows, cols) of ggml's blocks: each row is a whole number of blocks, and rows
// follow one another.
struct BlockView {
  BlockFormat format = BlockFormat::kQ8_0;
  const std::byte* data = nullptr;  // rows * row_bytes() bytes, of any alignment
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of the values of a block

  bool empty() const { return rows == 0 || cols == 0; }
  std::size_t row_bytes() const;
  const std::byte* Row(std::int64_t row) const { return data + row * row_bytes(); }
};
std::size_t BytesOf(const BlockView& blocks);

enum class WeightForm : std::uint8_t { kDense, kFourBit, kBlocks };

struct WeightView {
  WeightView() = default;
  // Implicit: where a weight is read, a matrix of any of these forms is one.
  WeightView(const ConstMatrixView& m) : dense(m) {}
  WeightView(const MatrixView& m) : dense(m) {}
  WeightView(const QuantizedView& q, const std::byte* packed_by_backend = nullptr)
      : quantized(q), prepacked(packed_by_backend) {}
  WeightView(const BlockView& b) : blocks(b) {}

  // One of the three is not empty.
  ConstMatrixView dense;
  QuantizedView quantized;
  BlockView blocks;
  // What the backend that adopted the weight made of it (Backend::Prepack), or null. Of a 4-bit
  // weight that is `quantized` in another order: Linear then reads the packed values and the scale
  // of each block here; all other ops read `quantized`.
  const std::byte* prepacked = nullptr;

  WeightForm form() const {
    if (!dense.empty()) return WeightForm::kDense;
    return blocks.empty() ? WeightForm::kFourBit : WeightForm::kBlocks;
  }
  std::int64_t rows() const { return dense.rows + quantized.rows + blocks.rows; }
  std::int64_t cols() const { return dense.cols + quantized.cols + blocks.cols; }
  bool empty() const { return rows() == 0 || cols() == 0; }
  // Whether Linear reads the values in the order of a backend.
  bool is_reordered() const { return form() == WeightForm::kFourBit && prepacked != nullptr; }
};

// The bytes of all values, scales and tables, without a prepacked copy.
std::size_t BytesOf(const WeightView& weight);

// The flat index of a NaN or Inf of a weight in host memory, or -1. Of a dense weight the first
// one; of 4-bit values and blocks, whose scales spoil many at once, the start of the first such
// row.
std::int64_t FirstNonFinite(Context& context, const WeightView& weight);

// False where reading the weight in place is undefined: files may put a dense tensor at any byte.
bool IsAligned(const WeightView& weight);

// True for two views of one weight.
bool HaveOnePlace(const WeightView& a, const WeightView& b);

// Calls visit(data, bytes) with a reference to each pointer of a weight and the bytes behind it.
template <typename Visit>
void ForEachPart(WeightView& weight, const Visit& visit);

// Decodes columns [col, col + cols) of a row of a weight in host memory to out (cols), as float32:
// the exact values, but for F64 and C128, which are refused.
void ReadRow(const WeightView& weight, std::int64_t row, std::int64_t col, std::int64_t cols,
             float* out);

// Rows [first, first + count) of a weight as the host reads them: in place in host memory,
// otherwise a copy. A 4-bit weight is copied whole.
class HostWeight {
 public:
  HostWeight(Memory& memory, const WeightView& weight, std::int64_t first, std::int64_t count);
  HostWeight(Memory& memory, const WeightView& weight)
      : HostWeight(memory, weight, 0, weight.rows()) {}

  // Decodes row `row`, counted from `first`, to out (cols).
  void Read(std::int64_t row, float* out) const {
    ReadRow(weight_, begin_ + row, 0, weight_.cols(), out);
  }

 private:
  std::vector<HostBytes> copies_;  // data that the view points into
  WeightView weight_;
  std::int64_t begin_ = 0;  // the row of weight_ that is row `first` of the whole
};

// ---- Inline.

// Calls visit(data, bytes) with a reference to each pointer of a 4-bit matrix.
template <typename Visit>
void ForEachPart(QuantizedView& q, const Visit& visit) {
  visit(q.packed, static_cast<std::size_t>(PackedBytes(q.size())));
  visit(q.scales, q.blocks() * ScaleBytes(q.scale_type));
  visit(q.code, 16 * sizeof(float));
  if (q.scale_type != ScaleType::kDoubleBnb) return;
  visit(q.nested.map, 256 * sizeof(float));
  visit(q.nested.absmax, BlockCount(q.blocks(), q.nested.block_size) * sizeof(float));
}

template <typename Visit>
void ForEachPart(WeightView& weight, const Visit& visit) {
  switch (weight.form()) {
    case WeightForm::kDense:
      return visit(weight.dense.data, BytesOf(weight));
    case WeightForm::kFourBit:
      return ForEachPart(weight.quantized, visit);
    case WeightForm::kBlocks:
      return visit(weight.blocks.data, BytesOf(weight));
  }
}

}  // namespace qlora

#endif  // QLORA_BACKEND_WEIGHT_H_
