// Quantization to 4 bits, with the bits of quant/encode.cc and quant/double_quant.cc.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"
#include "quant/dynamic_map.h"

namespace qlora::cuda {
namespace {

constexpr float kLeastDivisor = 1e-38f;  // as in quant/encode.h
constexpr unsigned kMagnitude = 0x7fffffffu;

GPU_INLINE float ValueAt(const BlocksToEncode& blocks, std::int64_t i) {
  switch (blocks.dtype) {
    case DType::kBF16:
      return Widen(static_cast<const BFloat16*>(blocks.x)[i]);
    case DType::kF16:
      return Widen(static_cast<const Float16*>(blocks.x)[i]);
    default:
      return static_cast<const float*>(blocks.x)[i];
  }
}

struct LargerBits {
  GPU_INLINE unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

GPU_INLINE std::uint8_t CodeOf(const EncodeRule& rule, float x) {
  int below = 0;
#pragma unroll
  // 15 comparisons whose indices are known to the compiler: an index that differs between lanes
  // would need the thresholds in memory. NaN is above no threshold; the host reports it from the
  // scale of the block.
  for (int k = 0; k < 15; ++k) below += x > rule.thresholds[k] ? 1 : 0;
  // A table in registers: the code of the rank.
  std::uint8_t code = rule.codes[0];
#pragma unroll
  for (int k = 1; k < 16; ++k) code = below == k ? rule.codes[k] : code;
  return code;
}

// A warp for each block of values; a lane makes whole bytes.
__global__ void __launch_bounds__(kThreads) EncodeBlocksKernel(BlocksToEncode blocks) {
  const Team team = TeamOf(kWarp);
  const std::int64_t begin = team.row * blocks.block_size;
  if (begin >= blocks.count) return;
  const std::int64_t left = blocks.count - begin;
  const bool full = left >= blocks.block_size;
  const std::int64_t count = full ? blocks.block_size : left;
  // Without the sign, bits of floats order like their values, and NaN comes after infinity.
  unsigned bits = 0;
  for (std::int64_t i = team.rank; i < count; i += kWarp) {
    bits = LargerBits()(bits, __float_as_uint(ValueAt(blocks, begin + i)) & kMagnitude);
  }
  const float absmax = __uint_as_float(WarpJoin(bits, LargerBits()));
  // bitsandbytes multiplies by the reciprocal in whole blocks and divides in a short last one.
  const float divisor = absmax > kLeastDivisor ? absmax : kLeastDivisor;
  const float factor = full ? __fdiv_rn(1.0f, divisor) : divisor;
  if (team.rank == 0) blocks.scales[team.row] = full || !(absmax <= divisor) ? absmax : divisor;
  const auto encode = [&](std::int64_t i) -> unsigned {
    if (i >= count) return 0u;
    if (absmax == 0) return blocks.rule.zero_block_code;
    const float w = ValueAt(blocks, begin + i);
    return CodeOf(blocks.rule, full ? __fmul_rn(w, factor) : __fdiv_rn(w, factor));
  };
  for (std::int64_t i = 2 * team.rank; i < count; i += 2 * kWarp) {
    blocks.packed[(begin + i) / 2] = static_cast<std::uint8_t>(encode(i) << 4 | encode(i + 1));
  }
}

// The number of midpoints of the map that are below x.
GPU_INLINE std::uint8_t MapCode(const float* map, float x) {
  int below = 0;
  for (int half = 128; half > 0; half /= 2) {
    const int k = below + half - 1;
    if ((map[k] + map[k + 1]) / 2 < x) below += half;
  }
  return static_cast<std::uint8_t>(below);
}

// A block of threads for each nested block.
__global__ void __launch_bounds__(kThreads) EncodeScalesKernel(ScalesToEncode s) {
  GPU_SHARED(float, map, [256]);
  for (int k = static_cast<int>(threadIdx.x); k < 256; k += kThreads) map[k] = s.map[k];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * s.block_size;
  const std::int64_t end = s.count - begin < s.block_size ? s.count : begin + s.block_size;
  float largest = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    largest = fmaxf(largest, fabsf(__fsub_rn(s.scales[i], s.mean)));
  }
  largest = BlockJoin<kThreads>(largest, Larger());
  if (threadIdx.x == 0) s.absmax[blockIdx.x] = largest;
  // A largest value so small that its reciprocal overflows counts as 0.
  const float factor = __fdiv_rn(1.0f, largest);
  const bool zero = !(factor < INFINITY);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    s.codes[i] =
        zero ? DynamicMap::kZero : MapCode(map, __fmul_rn(__fsub_rn(s.scales[i], s.mean), factor));
  }
}

}  // namespace

void EncodeBlocks(Stream stream, const BlocksToEncode& blocks) {
  const std::int64_t count = (blocks.count + blocks.block_size - 1) / blocks.block_size;
  Launch("EncodeBlocks", EncodeBlocksKernel, TeamBlocks(count, kWarp), kThreads, 0, stream, blocks);
}

void EncodeScales(Stream stream, const ScalesToEncode& scales) {
  const std::int64_t count = (scales.count + scales.block_size - 1) / scales.block_size;
  Launch("EncodeScales", EncodeScalesKernel, static_cast<unsigned>(count), kThreads, 0, stream,
         scales);
}

}  // namespace qlora::cuda
