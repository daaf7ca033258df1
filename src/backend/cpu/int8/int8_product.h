// The inner product of codes of 8 bits (docs/math/eight-bit.md): rows of a weight, or its columns,
// with rows of activations as the lanes.
//
//                       panel: up to kInt8Lanes rows of activations
//                       +-----------+   (k / 4, width, 4) codes; of each lane and group a scale,
//                     k |           |   and -128 times the sum of the codes
//        k              +-----------+
//      +------------+   +-----------+
// rows | a          |   | c         |   float32; for each group of k, the exact sum of 32 bits
// times
//      +------------+   +-----------+   the scale of the lane is added, in ascending order
//      bytes, kInt8Stride apart
//
// Codes of a group may be in any order that both operands have. Columns of a 4-bit weight are `a`
// in quads where the kernels read quads: four values of k of one column side by side, then those of
// the next column.
//
// Some instructions multiply bytes without a sign by bytes with one: for these, `a` holds codes +
// 128, and a sum starts at -128 times the sum of the codes of its lane, which takes the 128 out.
#ifndef QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_
#define QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_

#include <cstdint>

#include "machine/simd_target.h"

namespace qlora::cpu {

inline constexpr std::int64_t kInt8Lanes = 32;   // of a panel
inline constexpr std::int64_t kInt8Vector = 16;  // widths are multiples of it
inline constexpr std::int64_t kInt8Step = 4;     // codes side by side
// k is a multiple of it for kernels: behind the last code, panels have 0, and `a` any bytes.
inline constexpr std::int64_t kInt8Depth = 64;
// Bytes between rows of `a`: 512 codes and a gap, so that rows do not compete for one cache set.
inline constexpr std::int64_t kInt8Stride = 512 + 64;
inline constexpr std::uint8_t kCodeOffset = 128;

struct PackedChunks;  // coded_chunks.h

// The cache lines of `bytes` of each of some rows.
struct CacheLines {
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 0;  // bytes from one row to the next
  std::int64_t rows = 0;
  std::int64_t bytes = 0;

  // Parts [begin, end) of `parts` equal ones.
  CacheLines Part(std::int64_t begin, std::int64_t end, std::int64_t parts) const {
    const std::int64_t first = rows * begin / parts;
    return {data + first * stride, stride, rows * end / parts - first, bytes};
  }
};

struct Int8Product {
  std::int64_t rows = 0;            // > 0
  std::int64_t k = 0;               // from the begin of a group on
  std::int64_t width = 0;           // kInt8Vector or kInt8Lanes
  const std::uint8_t* a = nullptr;  // (rows, k), with room for whole kInt8Vector rows
  bool quads = false;               // `a` is (k / kInt8Step, rows, kInt8Step), kInt8Stride apart
  const std::int8_t* panel = nullptr;
  const float* scales = nullptr;         // (groups, width)
  const std::int32_t* starts = nullptr;  // (groups, width)
  float* c = nullptr;                    // (rows, width)
  std::int64_t c_stride = 0;
  bool add = false;                // c += instead of c =
  const float* factors = nullptr;  // (rows): what the finished sums are multiplied by; or null
  // Hints, of which a kernel may take one or none: width * k codes that are read next, or null; and
  // lines of the weight of which the next `a` is made.
  const std::int8_t* fetch_codes = nullptr;
  CacheLines fetch_weight = {};
};

// The same of a few rows and a few lanes, each of which is a panel.
inline constexpr std::int64_t kDotRows = 4;
inline constexpr std::int64_t kDotDepth = 16384;
struct CodeDots {
  std::int64_t rows = 0;  // at most kDotRows, at least one
  std::int64_t k = 0;     // a multiple of kInt8Depth, at most kDotDepth
  // The codes of one row, or if they are null what codes are made of in the course of the products.
  const std::uint8_t* a = nullptr;
  const PackedChunks* chunks = nullptr;
  std::int64_t lanes = 0;
  const std::int8_t* panels = nullptr;  // k_stride apart
  std::int64_t k_stride = 0;
  const float* scales = nullptr;         // group_stride apart
  const std::int32_t* starts = nullptr;  // likewise
  std::int64_t group_stride = 0;
  float* c = nullptr;  // (rows, lanes)
  std::int64_t c_stride = 0;
  bool add = false;
};

struct Int8Kernels {
  std::uint8_t offset;  // of `a`: kCodeOffset or 0
  void (*multiply)(const Int8Product& product);
  bool quads = false;  // whether multiply reads `a` in quads
  // Around calls of multiply in one thread, which has its tiles to itself between them; or null.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  // For up to so many rows of activations.
  std::int64_t most_dots = 0;
  void (*dots)(const CodeDots& dots) = nullptr;  // or null
};

// The kernels with such instructions, which the target in use has. All give the same bits.
const Int8Kernels& KernelsOf(Int8Dots dots);

// Of the folder of an architecture, as the functions at the end of gemm/kernels.h. dots: not
// kFloat.
const Int8Kernels& Int8KernelsOfProcessor(Int8Dots dots);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_
