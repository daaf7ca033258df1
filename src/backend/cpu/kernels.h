// The inner products of every matrix multiplication of the CPU backend, one table of functions per
// instruction set.
//
// A product C(rows, lanes) = A(rows, k) * P(k, lanes) reads two packed operands:
//   A, the "rows" operand: row-major, `stride` elements apart; its values are broadcast.
//   P, a "panel": up to Kernels::panel lanes side by side, (k / step, width, step) elements, where
//     width is the number of lanes rounded up to whole vectors.
// Elements are float32, float32 rounded to bfloat16, or bfloat16; sums are float32 and run over k
// in ascending order, so a result depends on nothing but its own row and lane.
#ifndef QLORA_BACKEND_CPU_KERNELS_H_
#define QLORA_BACKEND_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "qlora/nf4.h"
#include "qlora/tensor.h"

namespace qlora::cpu {

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
  // A hint, which kernels may ignore: lines of the cache that are read soon. They are fetched in
  // the course of the product, because only some can be on their way at a time.
  const void* fetch = nullptr;
  std::int64_t fetch_lines = 0;
  std::int64_t fetch_stride = 0;  // bytes from one to the next
};

// Where the scales of chunks lie: as numbers; or, doubly quantized, as codes that are looked up in
// the table of their nested block, which is quicker than decoding every scale beforehand.
struct ChunkScales {
  const float* values = nullptr;        // one per chunk; or tables of kNestedBlock scales
  std::int64_t stride = 0;              // chunks from one row to the next
  const std::uint8_t* codes = nullptr;  // null, or one per chunk
  std::int64_t first = 0;  // the first chunk, counted from the start of the first table

  float At(std::int64_t row, std::int64_t chunk) const {
    const std::int64_t i = row * stride + chunk;
    return codes == nullptr ? values[i] : values[((first + i) & -kNestedBlock) + codes[i]];
  }
  // The same from another chunk of each row on.
  ChunkScales From(std::int64_t chunk) const {
    if (codes == nullptr) return {.values = values + chunk, .stride = stride};
    return {.values = values, .stride = stride, .codes = codes + chunk, .first = first + chunk};
  }

  static constexpr std::int64_t kNestedBlock = 256;
};

// A part of a 4-bit matrix whose columns start and end at multiples of 64 and whose 64-column
// chunks lie within one block each.
struct QuantizedChunks {
  const std::uint8_t* packed = nullptr;  // of the first chunk
  std::int64_t row_bytes = 0;            // from one row to the next
  ChunkScales scales;
  const float* code = nullptr;  // 16 values
  std::int64_t rows = 0;
  std::int64_t chunks = 0;  // columns / 64
};
inline constexpr std::int64_t kCacheLine = 64;  // bytes
inline constexpr std::int64_t kChunk = 64;
// Rows of a 4-bit matrix that are decoded to panels at a time, one chunk of each.
inline constexpr std::int64_t kDecodedRows = 256;

// Dot products of few rows of x with every row of a weight: for products too small for panels.
// out(m, r) = sum over k of x(m, k) * weight(r, k), float32 sums in an order that depends on count
// and k alone.
struct DotProduct {
  std::int64_t rows = 0;  // of the weight
  std::int64_t k = 0;
  std::int64_t count = 0;   // rows of x, at most kDotBatch, or prepacked_batch
  const void* x = nullptr;  // packed; count * RoundUp(k, kDotGroup) elements
  float* out = nullptr;     // (count, rows)
  std::int64_t out_stride = 0;
};
inline constexpr std::int64_t kDotBatch = 8;
// Most rows of a row-major 4-bit weight that are multiplied at a time.
inline constexpr std::int64_t kDotWeightRows = 12;
inline constexpr std::int64_t kDotGroup = 128;

// Rows of a 4-bit weight in the order of prepacked.h, in panels of kPrepackedRows.
struct PrepackedRows {
  const std::byte* panels = nullptr;  // aligned to 64 bytes; up to 3 more are read beyond the last
  std::int64_t panel_bytes = 0;       // from one panel to the next
  std::int64_t rows = 0;              // a multiple of kPrepackedRows
  std::int64_t chunks = 0;            // columns / kChunk
  const float* code = nullptr;        // 16 values
  // Null where scales are float32; else a scale is map[code] * nested scale + offset.
  const std::byte* scale_map = nullptr;  // (4, 256): the bytes of the map
  const float* nested_scales = nullptr;  // one per ChunkScales::kNestedBlock chunks of the weight
  float offset = 0;
  std::int64_t first = 0;     // chunks of the weight before these rows
  std::int64_t ahead = 8192;  // bytes from what is read to what is fetched early
};
inline constexpr std::int64_t kPrepackedRows = 16;
inline constexpr std::int64_t kPrepackedGroup = 4;  // chunks whose scales lie together
inline constexpr std::int64_t kPrepackedChunkBytes = kPrepackedRows * kChunk / 2;

struct Kernels {
  const char* name;
  std::int64_t panel;   // most lanes of a panel
  std::int64_t vector;  // lanes of a vector
  std::int64_t step;    // values of k stored side by side; k is padded to a multiple with zeros
  std::size_t bytes;    // of one element
  // Whether float32 rows of dot products are read as they are, as bfloat16 ones always are.
  bool reads_float_rows;
  // Up to so many rows, dot products with chunks beat panels, and those with prepacked weights beat
  // unpacking them for panels. 0: no kernels for prepacked weights.
  std::int64_t most_dot_rows;
  std::int64_t most_prepacked_rows;
  // From so many rows on, row-major 4-bit weights are prepacked on the way where they can be.
  std::int64_t fewest_repacked_rows;
  std::int64_t prepacked_batch;  // most rows of x that meet prepacked weights at a time

  void (*multiply)(const Product& product);

  // out(r, i) = scale * in(r, i), for all `in.rows` rows.
  void (*pack_rows)(const ConstMatrixView& in, float scale, void* out, std::int64_t stride);
  // out(r, i) = in(i, r).
  void (*pack_rows_transposed)(const ConstMatrixView& in, void* out, std::int64_t stride);
  // Panels: the lanes are the rows of `in` (lanes, k), or its columns (k, lanes). Lanes up to
  // `width` that `in` does not have become zero.
  void (*pack_panel_of_rows)(const ConstMatrixView& in, void* panel, std::int64_t width);
  void (*pack_panel_of_columns)(const ConstMatrixView& in, void* panel, std::int64_t width);
  // The same from 4-bit weights.
  void (*decode_rows)(const QuantizedChunks& in, void* out, std::int64_t stride);

  // As multiply, with the rows operand decoded on the way: for one panel, where decoding is not
  // small beside multiplying. in.rows == product.rows, in.chunks * kChunk == product.k.
  void (*multiply_chunks)(const QuantizedChunks& in, const Product& product);
  // As multiply, with the columns of the chunks as lanes, decoded on the way: c is (rows, in.chunks
  // * kChunk). product.rows > 0; in.rows > 0; product.k == in.rows rounded up to `step`;
  // in.scales.codes == nullptr; panels: room for kDecodedRows * kChunk elements, in place of
  // product.panel and product.width.
  void (*multiply_decoded_panels)(const QuantizedChunks& in, void* panels, const Product& product);

  // The weight is dense, packed or of a type that is read as it is, or 4-bit, whose values may be
  // rounded before they are scaled or not at all; x is packed by the function of the same name.
  void (*pack_dot_rows)(const ConstMatrixView& in, void* out);
  void (*dot_rows)(const ConstMatrixView& rows, const DotProduct& product);
  void (*pack_dot_chunks)(const ConstMatrixView& in, void* out);
  // in.rows == product.rows, at most kDotWeightRows; in.chunks * kChunk == product.k.
  void (*dot_chunks)(const QuantizedChunks& in, const DotProduct& product);

  // Prepacked weights, and x packed by the function of the same name: at most prepacked_batch rows.
  // Not called where most_prepacked_rows is 0.
  void (*pack_dot_prepacked)(const ConstMatrixView& in, void* out) = nullptr;
  void (*dot_prepacked)(const PrepackedRows& in, const DotProduct& product) = nullptr;
  // Chunks [chunk, chunk + chunks) of one panel as they were before, packed (kPrepackedRows, chunks
  // * 32 bytes) and scales (kPrepackedRows, chunks); chunk is a multiple of kPrepackedGroup.
  void (*unpack_panel)(const PrepackedRows& in, std::int64_t chunk, std::int64_t chunks,
                       std::uint8_t* packed, float* scales) = nullptr;
};

// Of packed operands.
inline DType ElementType(const Kernels& kernels) {
  return kernels.bytes == 2 ? DType::kBF16 : DType::kF32;
}

// The fastest table of this machine (as limited by QLORA_TARGET) whose products have operands of
// type `compute`, kF32 or kBF16.
const Kernels& SelectKernels(DType compute);

// Float32 arithmetic through Highway; operands rounded to bfloat16 first if `round`.
const Kernels& FloatKernels(bool round);
// AVX512_BF16: only on machines that have it.
const Kernels& Bfloat16Kernels();

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_KERNELS_H_
