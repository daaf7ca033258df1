// Values of 4-bit weights in kernels: the bits of DequantizeRows (qlora/nf4.h), which is why no
// product is contracted with a sum.
#ifndef QLORA_BACKEND_CUDA_WEIGHTS_H_
#define QLORA_BACKEND_CUDA_WEIGHTS_H_

#include <bit>

#include "backend/cuda/elements.h"
#include "qlora/nf4.h"

namespace qlora::cuda {

// Divides by a number that is known at the launch: by a shift, where the number is a power of two,
// otherwise by a multiplication:
//   n / d = the high 64 bits of n m,   m = 2^64 / d, rounded up,
// exact while n d < 2^64, because m d - 2^64 < d.
struct Divisor {
  std::uint64_t value = 1;
  std::uint64_t magic = 0;  // 0: divide by 2^shift
  int shift = 0;
};
inline Divisor DivisorOf(std::int64_t d) {
  const auto value = static_cast<std::uint64_t>(d);
  if (std::has_single_bit(value)) return {value, 0, std::countr_zero(value)};
  return {value, ~std::uint64_t{0} / value + 1, 0};
}
GPU_INLINE std::int64_t Divide(std::int64_t n, const Divisor& d) {
  if (d.magic == 0) return n >> d.shift;
  return static_cast<std::int64_t>(__umul64hi(static_cast<std::uint64_t>(n), d.magic));
}

// A 4-bit weight as kernels read it.
struct PackedWeight {
  QuantizedView q;
  Divisor block, nested;  // sizes
};
inline PackedWeight PackedWeightOf(const QuantizedView& q) {
  return {q, DivisorOf(q.block_size), DivisorOf(q.nested.block_size)};
}

// map_value: the entry of the map for the code of the scale.
GPU_INLINE float NestedScale(const QuantizedView& q, float map_value, float absmax) {
  return __fadd_rn(__fmul_rn(map_value, absmax), q.nested.offset);
}

GPU_INLINE float ScaleOf(const PackedWeight& w, std::int64_t block) {
  const QuantizedView& q = w.q;
  if (q.scale_type == ScaleType::kF32) return static_cast<const float*>(q.scales)[block];
  const std::uint8_t code = static_cast<const std::uint8_t*>(q.scales)[block];
  return NestedScale(q, q.nested.map[code], q.nested.absmax[Divide(block, w.nested)]);
}

// The 8 values of four bytes, of which the lowest is first.
GPU_INLINE void DecodeWord(std::uint32_t word, const float* code, float scale, float (&v)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {  // the first of a byte is in its high half
    v[i] = __fmul_rn(code[word >> (8 * (i / 2) + (i % 2 == 0 ? 4 : 0)) & 15], scale);
  }
}

// Values [first, first + count) in row-major order. code: the 16 values of the nibbles.
GPU_INLINE void DecodeChunk(const PackedWeight& w, const float* code, std::int64_t first, int count,
                            float (&v)[kChunk]) {
  const auto size = static_cast<std::int64_t>(w.block.value);
  std::int64_t block = Divide(first, w.block);
  std::int64_t next = (block + 1) * size;  // the first value of the next block
  float scale = ScaleOf(w, block);
  const std::uint8_t* bytes = w.q.packed + first / 2;
  if (count == kChunk && first + kChunk <= next && first % 2 == 0 &&
      reinterpret_cast<std::uintptr_t>(bytes) % 4 == 0) {
    return DecodeWord(*reinterpret_cast<const std::uint32_t*>(bytes), code, scale, v);
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    v[i] = 0;
    if (i >= count) continue;
    const std::int64_t at = first + i;
    if (at == next) {
      scale = ScaleOf(w, ++block);
      next += size;
    }
    const std::uint8_t byte = w.q.packed[at / 2];
    v[i] = __fmul_rn(code[at % 2 == 0 ? byte >> 4 : byte & 15], scale);
  }
}

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_WEIGHTS_H_
