// The inner product of codes of 8 bits (docs/math/eight-bit.md): rows of a weight, or its columns,
// with rows of activations as the lanes.
//
//                       panel: up to kInt8Lanes rows of activations
//                       +-----------+   (k / 4, width, 4) signed codes; of each lane and group
//                     k |           |   a scale, and where its sum starts
//        k              +-----------+
//      +------------+   +-----------+
// rows | a          |   | c         |   float32; for each group of k, the exact sum of 32 bits
// times
//      +------------+   +-----------+   the scale of the lane is added, in ascending order
//      bytes, a_stride apart
//
// Bytes of `a` are codes + 128, because vpdpbusd multiplies bytes without a sign with bytes with
// one. A sum starts at -128 times the sum of the codes of its lane, which takes the 128 out again.
#ifndef QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_
#define QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_

#include <array>
#include <cstdint>

namespace qlora::cpu {

inline constexpr std::int64_t kInt8Lanes = 32;   // of a panel: 6 rows x 2 vectors fill registers
inline constexpr std::int64_t kInt8Vector = 16;  // widths are multiples of it
inline constexpr std::int64_t kInt8Step = 4;     // codes side by side; a panel is padded with 0
inline constexpr std::uint8_t kCodeOffset = 128;

struct Int8Product {
  std::int64_t rows = 0;            // > 0
  std::int64_t k = 0;               // from the begin of a group on
  std::int64_t width = 0;           // kInt8Vector or kInt8Lanes
  const std::uint8_t* a = nullptr;  // (rows, k rounded up to kInt8Step)
  std::int64_t a_stride = 0;
  const std::int8_t* panel = nullptr;
  const float* scales = nullptr;         // (groups, width)
  const std::int32_t* starts = nullptr;  // (groups, width)
  float* c = nullptr;                    // (rows, width)
  std::int64_t c_stride = 0;
  bool add = false;                // c += instead of c =
  const float* factors = nullptr;  // (rows): what the finished sums are multiplied by; or null
};
using Int8Multiply = void (*)(const Int8Product& product);

// The fastest for this machine, as limited by QLORA_TARGET. All give the same bits.
Int8Multiply SelectInt8Multiply();

// With the kernels for float32, for all machines.
void MultiplyInt8AsFloats(const Int8Product& product);
// With instructions for bytes, the fastest first; null where this machine, as limited by
// QLORA_TARGET, has none. Of the folder of an architecture, as the functions at the end of
// gemm/kernels.h.
std::array<Int8Multiply, 2> Int8Multiplies();

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_INT8_PRODUCT_H_
