// Rows or columns of a quantized weight as the rows of Int8Product.
#ifndef QLORA_BACKEND_CPU_INT8_CODED_OPERAND_H_
#define QLORA_BACKEND_CPU_INT8_CODED_OPERAND_H_

#include <cstdint>
#include <functional>
#include <span>

#include "backend/cpu/int8/coded_chunks.h"
#include "backend/cpu/int8/coded_panels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/int8/codes.h"
#include "qlora/context.h"

namespace qlora::cpu {

// Values of k that are coded between two visits of the sums.
inline constexpr std::int64_t kCodedDepth = 4 * int8::kGroup;
static_assert(kCodedDepth + kInt8Depth <= kInt8Stride && kCodedDepth % kInt8Depth == 0);

class CodedOperand {
 public:
  virtual ~CodedOperand() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t k() const = 0;
  // Whether `quads` of Int8Product is true of what Pack writes for such kernels.
  virtual bool HasQuads(const Int8Kernels& kernels) const = 0;
  // Writes the codes of values [first, first + depth) of k, each + the offset of the kernels, as
  // `a` of Int8Product. out: room for CodedRows::kMost rows. first: a multiple of kCodedDepth.
  virtual void Pack(std::int64_t first, std::int64_t depth, const Int8Kernels& kernels,
                    std::uint8_t* out) const = 0;
  // The lines of values [first, first + kCodedDepth) that Pack reads, where a processor does not
  // foresee their addresses; else none.
  virtual CacheLines LinesOf(std::int64_t first) const = 0;
  // (rows, with room for whole kInt8Vector), or null: what sums are multiplied by.
  virtual const float* factors() const = 0;
  // out (rows): the values that value `k` of each row has in float32.
  virtual void Values(std::int64_t k, float* out) const = 0;
  // Calls add(k, row, excess) for all codes that were clamped; those of a row in ascending order.
  using Add = std::function<void(std::int64_t, std::int64_t, float)>;
  virtual void ForEachExcess(const Add& add) const = 0;
};

// What is made once of a weight in blocks, whose rows would be decoded for their scales before
// their codes are made: the largest magnitude of each row, in float32. 0 of other weights.
std::size_t RowScaleBytes(const WeightView& weight);
void PackRowScales(Context& context, const WeightView& weight, std::byte* out);

// As int8::ScaleOfRow.
int8::RowScale ScaleOfRow(const WeightView& weight, std::int64_t row, float* block_scales);

// Rows [row, row + rows) of a weight; k are its columns, in paired order. At most kMost rows.
class CodedRows final : public CodedOperand {
 public:
  // The codes of activations, which can be more than the second-level cache holds, are read once
  // for so many rows.
  static constexpr std::int64_t kMost = 128;

  // room: for WeightRows::ScaleCount floats.
  CodedRows(const WeightView& weight, std::int64_t row, std::int64_t rows, float* room);

  std::int64_t rows() const override { return rows_; }
  std::int64_t k() const override { return weight_.cols(); }
  bool HasQuads(const Int8Kernels& /*kernels*/) const override { return false; }
  void Pack(std::int64_t first, std::int64_t depth, const Int8Kernels& kernels,
            std::uint8_t* out) const override;
  CacheLines LinesOf(std::int64_t first) const override;
  // sums (rows, lanes): the product with single panels, row by row as memory has them.
  void Multiply(const Int8Kernels& kernels, const CodedPanels& panels, std::uint8_t* room,
                float* sums, std::int64_t stride) const;
  const float* factors() const override { return factors_; }
  void Values(std::int64_t k, float* out) const override;
  void ForEachExcess(const Add& add) const override;

 private:
  void ScaleChunks(float* factors);
  // As Pack, of one row of a weight without chunks, for any depth.
  void PackRow(std::int64_t row, std::int64_t first, std::int64_t depth, std::uint8_t offset,
               std::uint8_t* out) const;
  // Of a chunked weight.
  PackedChunks Chunks(std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t depth,
                      std::uint8_t offset) const;

  const WeightView& weight_;
  const std::int64_t row_;
  const std::int64_t rows_;
  const float* chunk_factors_;  // (rows, chunks) of a chunked weight
  int8::RowScale row_scales_[kMost];
  float factors_[kMost] = {};
};

// Columns [col, col + cols) of a weight, at most kMost; k are its rows, in plain order. Their
// scales lie along k: activations take them over before they are coded.
class CodedColumns final : public CodedOperand {
 public:
  // A cache line of 4-bit values. Rows are pages apart: each visit of one costs a look-up of its
  // address.
  static constexpr std::int64_t kMost = kTransposedCols;

  // row_scales: of all rows.
  CodedColumns(const WeightView& weight, std::int64_t col, std::int64_t cols,
               const int8::RowScale* row_scales)
      : weight_(weight), col_(col), cols_(cols), row_scales_(row_scales) {}

  std::int64_t rows() const override { return cols_; }
  std::int64_t k() const override { return weight_.rows(); }
  bool HasQuads(const Int8Kernels& kernels) const override;
  void Pack(std::int64_t first, std::int64_t depth, const Int8Kernels& kernels,
            std::uint8_t* out) const override;
  CacheLines LinesOf(std::int64_t first) const override;
  const float* factors() const override { return nullptr; }
  void Values(std::int64_t k, float* out) const override { ReadRow(weight_, k, col_, cols_, out); }
  void ForEachExcess(const Add& add) const override;

 private:
  const WeightView& weight_;
  const std::int64_t col_;
  const std::int64_t cols_;
  const int8::RowScale* row_scales_;
};

// Quads need as many strides as depth has steps, each of which holds all columns.
static_assert(kCodedDepth / kInt8Step <= CodedRows::kMost &&
              CodedColumns::kMost * kInt8Step <= kInt8Stride);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_OPERAND_H_
