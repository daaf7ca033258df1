// The inner products of every matrix multiplication of the CPU backend, one table of functions per
// instruction set.
//
// A product C = A P reads two packed operands:
//
//                        P: a panel, up to Kernels::panel lanes wide
//                        +-----------+
//                      k |           |     (k / step, width, step) elements, where width is the
//                        |           |     number of lanes rounded up to whole vectors
//        k               +-----------+
//      +-------------+   +-----------+
// rows | A           |   | C   ####  |     ####: a tile of sums stays in registers for all k, while
//      +-------------+   +-----------+     vectors of P meet values of A that are broadcast
//      row-major, a_stride elements apart
//
// Elements are float32, float32 rounded to bfloat16, or bfloat16. Sums are float32 and run over k
// in ascending order, so a result depends on nothing but its own row and lane.
#ifndef QLORA_BACKEND_CPU_GEMM_KERNELS_H_
#define QLORA_BACKEND_CPU_GEMM_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/gemm/format.h"
#include "backend/cpu/views.h"
#include "backend/weight.h"
#include "qlora/nf4.h"
#include "qlora/tensor.h"

namespace qlora::cpu {

struct Int8Kernels;
struct PrepackedRows;
struct DotProduct;

// code = value * inverse, rounded to the nearest, + offset. Columns as of BlockKernels; no value is
// beyond the largest code.
struct BlockCoding {
  std::int64_t col;
  std::int64_t cols;
  float inverse;
  std::uint8_t offset;
};

// The kernels for rows of ggml's blocks in one format. Columns [col, col + cols) are at most two
// chunks for panels, begin at a multiple of kChunk, and end at one or at the end of the rows.
struct BlockKernels {
  // As a rows operand (blocks.rows, cols).
  void (*decode_rows)(const BlockView& blocks, std::int64_t col, std::int64_t cols, void* out,
                      std::int64_t stride);
  // As panels whose lanes are the columns, kChunk each, one after the other; the rows are k.
  void (*decode_panels)(const BlockView& blocks, std::int64_t col, std::int64_t cols, void* panels);
  // blocks.rows == product.rows, blocks.cols == product.k; x is packed by Kernels::pack_dot_blocks.
  void (*dot)(const BlockView& blocks, const DotProduct& product);
  // The largest magnitude of a row; null in tables for bfloat16.
  float (*largest)(const BlockView& blocks, std::int64_t row) = nullptr;
  // out (cols, rounded up to whole chunks): columns of a row as codes of 8 bits. Null likewise.
  void (*code_row)(const BlockView& blocks, std::int64_t row, const BlockCoding& coding,
                   std::uint8_t* out) = nullptr;
};

struct Product {
  std::int64_t rows = 0;   // > 0
  std::int64_t k = 0;      // a multiple of Kernels::step
  std::int64_t width = 0;  // of the panel
  const void* a = nullptr;
  std::int64_t a_stride = 0;  // in elements, >= k
  const void* panel = nullptr;
  float* c = nullptr;         // (rows, width)
  std::int64_t c_stride = 0;  // >= width
  bool add = false;           // c += instead of c =
  // A hint, which kernels may ignore: cache lines that are read soon. They are prefetched in the
  // course of the product, because only some can be on their way at a time.
  const void* fetch = nullptr;
  std::int64_t fetch_lines = 0;
  std::int64_t fetch_stride = 0;  // bytes from one to the next
};
inline constexpr std::int64_t kCacheLine = 64;  // bytes
// Rows of a 4-bit matrix that are decoded to panels at a time, one chunk of each.
inline constexpr std::int64_t kDecodedRows = 256;

// Dot products of few rows of x with every row of a weight, for products too small for panels:
//   out(m, r) = sum over k of x(m, k) * weight(r, k)
// Sums are float32, in an order that depends on k alone, or also on count, which is faster.
struct DotProduct {
  std::int64_t rows = 0;  // of the weight
  std::int64_t k = 0;
  std::int64_t count = 0;   // rows of x, at most kDotBatch, or PrepackedKernels::batch
  const void* x = nullptr;  // packed; count * RoundUp(k, kDotGroup) elements, more for blocks
  float* out = nullptr;     // (count, rows)
  std::int64_t out_stride = 0;
  bool row_by_row = false;  // in an order that depends on k alone
};
inline constexpr std::int64_t kDotBatch = 8;
inline constexpr std::int64_t kDotGroup = 128;
// The elements of a row of x, packed for blocks, for each kDotGroup of its columns.
inline constexpr std::int64_t kBlockDotElements = kDotGroup + 16;
// Rows of a row-major 4-bit weight that are multiplied at a time, at most.
inline constexpr std::int64_t kDotWeightRows = 12;

// Rows of x that meet a panel of a prepacked weight at a time, at most, row by row: two sums of
// each stay in registers.
inline constexpr std::int64_t kRowByRowBatch = 12;

// The kernels of a processor for prepacked weights, whose order prepacked.h describes.
struct PrepackedKernels {
  std::int64_t batch;  // rows of x that meet a panel at a time, at most
  // True where `dot` is faster than panels for any number of rows, and the order of its sums always
  // depends on k alone.
  bool serves_many = false;
  // From this many rows of x on, packing the panels of a row-major weight as they are needed and
  // then multiplying these is faster than dot products with chunks.
  std::int64_t fewest_repacked_rows;

  // The map of nested_code (256); see prepacked.h.
  void (*pack_scale_map)(const float* nested_code, std::byte* map);
  // The panel of rows [row, row + kPrepackedRows) of q.
  void (*pack_panel)(const QuantizedView& q, std::int64_t row, std::byte* panel);
  // Chunks [chunk, chunk + chunks) of one panel in row-major order again: packed (kPrepackedRows,
  // chunks * kChunkBytes) and scales (kPrepackedRows, chunks). chunk: a multiple of
  // kPrepackedGroup.
  void (*unpack_panel)(const PrepackedRows& in, std::int64_t chunk, std::int64_t chunks,
                       std::uint8_t* packed, float* scales);
  // Packs at most `batch` rows of x for `dot`.
  void (*pack_x)(const ConstMatrixView& x, void* out);
  void (*dot)(const PrepackedRows& in, const DotProduct& product);
};

struct Kernels {
  std::int64_t panel;   // lanes of a panel, at most
  std::int64_t vector;  // lanes of a vector
  std::int64_t step;    // values of k stored side by side; k is padded to a multiple with zeros
  std::int64_t bytes;   // of one element
  // True when dot_rows reads float32 rows as stored, as it always reads bfloat16 rows.
  bool reads_float_rows;

  void (*multiply)(const Product& product);

  // out(r, i) = scale * in(r, i), for all `in.rows` rows.
  void (*pack_rows)(const ConstMatrixView& in, float scale, void* out, std::int64_t stride);
  // out(r, i) = in(i, r).
  void (*pack_rows_transposed)(const ConstMatrixView& in, void* out, std::int64_t stride);
  // Panels: the lanes are the rows of `in` (lanes, k), or its columns (k, lanes). Lanes up to
  // `width` that `in` does not have become zero.
  void (*pack_panel_of_rows)(const ConstMatrixView& in, void* panel, std::int64_t width);
  void (*pack_panel_of_columns)(const ConstMatrixView& in, void* panel, std::int64_t width);
  // As pack_rows, from 4-bit weights.
  void (*decode_rows)(const QuantizedChunks& in, void* out, std::int64_t stride);

  // As multiply for one panel, with the rows operand decoded in the course of the product; null
  // where it is not faster than decode_rows before multiply. in.rows == product.rows,
  // in.chunks * kChunk == product.k.
  void (*multiply_chunks)(const QuantizedChunks& in, const Product& product);
  // As multiply, with the columns of the chunks as lanes, decoded in the course of the product: c
  // is (rows, in.chunks * kChunk). product.rows > 0; in.rows > 0; product.k == in.rows rounded up
  // to `step`; in.scales.codes == nullptr; panels: room for kDecodedRows * kChunk elements, in
  // place of product.panel and product.width.
  void (*multiply_decoded_panels)(const QuantizedChunks& in, void* panels, const Product& product);

  // Dot products. A dense weight is packed or of a type that is read as it is; the values of 4-bit
  // chunks may be rounded before they are scaled or not at all. x is packed by the function before.
  void (*pack_dot_rows)(const ConstMatrixView& x, void* out);
  void (*dot_rows)(const ConstMatrixView& rows, const DotProduct& product);
  // The kernels for weights in a format of ggml; null: their rows are decoded to float32 first.
  const BlockKernels* (*of_blocks)(BlockFormat format);
  void (*pack_dot_blocks)(const ConstMatrixView& x, void* out);
  void (*pack_dot_chunks)(const ConstMatrixView& x, void* out);
  // in.rows == product.rows, at most kDotWeightRows; in.chunks * kChunk == product.k.
  void (*dot_chunks)(const QuantizedChunks& in, const DotProduct& product);

  // The table whose functions above for dot products are used in place of these, null: these.
  const Kernels* dots = nullptr;

  const PrepackedKernels* prepacked = nullptr;  // null: weights cannot be prepacked

  // Products of quantized weights in 8 bits (int8/int8_product.h); null: as all others. Backward
  // only if int8_backward.
  const Int8Kernels* int8 = nullptr;
  bool int8_backward = false;
};

// of<1>() ... of<kCount>(): a kernel for each number of rows.
template <int kCount, class Of>
constexpr auto KernelsFor(const Of& of) {
  return [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array{of.template operator()<kRows + 1>()...};
  }
  (std::make_integer_sequence<int, kCount>());
}

// Calls visit(first, count) for tiles of nearly the same number of rows, at most `most`.
template <class Visit>
void ForEachTile(std::int64_t rows, std::int64_t most, const Visit& visit) {
  std::int64_t tiles = Pieces(rows, most);
  for (std::int64_t first = 0; tiles > 0; --tiles) {
    const std::int64_t count = Pieces(rows - first, tiles);
    visit(first, count);
    first += count;
  }
}

// The table with the functions for dot products of weights that are not prepacked.
inline const Kernels& DotsOf(const Kernels& kernels) {
  return kernels.dots == nullptr ? kernels : *kernels.dots;
}

// The type of elements of packed operands.
inline DType ElementType(const Kernels& kernels) {
  return kernels.bytes == 2 ? DType::kBF16 : DType::kF32;
}

// The fastest table of this machine (as limited by QLORA_TARGET) whose products have operands of
// type `compute`, kF32 or kBF16. Tables of Highway multiply in float32 and round to bfloat16
// before.
const Kernels& SelectKernels(DType compute);
// The table of Highway among these, with operands rounded to bfloat16 or as they are.
const Kernels& FloatKernels(bool round);

// The folder of an architecture, x86/ or arm/, defines the rest.

// Products of pairs of bfloat16; null where this machine has no fast ones.
const Kernels* Bfloat16Kernels();
// Prepacked weights in float32, for tables of AVX-512; null where AVX512_VBMI is missing.
const PrepackedKernels* FloatPrepackedKernels(bool round);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_KERNELS_H_
