// Products in pairs of bfloat16, for processors with AVX512_BF16. Highway 1.0 has no operation for
// vdpbf16ps, therefore intrinsics.
//
// A packed row holds consecutive bfloat16 values; a panel holds, for each pair of k, `width` lanes
// of two values (the operand of vdpbf16ps):
//
//   pair 0: | lane 0: k0 k1 | lane 1: k0 k1 | ...      one step multiplies 16 lanes with a pair of
//   pair 1: | lane 0: k2 k3 | lane 1: k2 k3 | ...      a row that is broadcast, and adds to 16 sums

#include "backend/cpu/x86/avx512-inl.h"
#include "backend/cpu/x86/bf16.h"
#include "backend/cpu/x86/bf16_format-inl.h"
#include "backend/cpu/x86/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512 ",avx512bf16")

namespace qlora::cpu::bf16 {
namespace {

template <int kRows, int kVectors>
HWY_INLINE void Tile(const Product& p, const std::uint16_t* a, float* c) {
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  const Index pairs = p.k / 2;
  __m512 sum[kRows][kVectors];
  LoadSums(p, c, sum);
  for (Index k = 0; k < pairs; ++k) {
    __m512bh lane[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      lane[v] = (__m512bh)_mm512_loadu_si512(panel + k * p.width + v * kVector);
    }
    AddPairs([&](int r) { return PairAt(a + r * p.a_stride + 2 * k); }, lane, sum);
  }
  StoreSums(p, sum, c);
}

template <int kRows, int kVectors>
void MultiplyRows(const Product& p) {
  static constexpr auto kTiles =
      KernelsFor<kRows>([]<int kHeight>() { return Tile<kHeight, kVectors>; });
  const auto* a = static_cast<const std::uint16_t*>(p.a);
  ForEachTile(p.rows, kRows, [&](Index r, Index height) {
    kTiles[height - 1](p, a + r * p.a_stride, p.c + r * p.c_stride);
  });
}

// A tile of Multiply whose rows are decoded 64 values at a time into one of two buffers in the
// first-level cache. Decoding runs on other units than vdpbf16ps and overlaps with it: while one
// chunk is multiplied the next one is decoded, a few rows at a time between a few values of k.
//
//   chunk 0   decode rows 0 ... 3
//   chunk 0   multiply 1/4   | 1/4   | 1/4   | 1/4
//   chunk 1   decode row 0   | row 1 | row 2 | row 3
//   chunk 1                                           multiply 1/4 ...
template <int kRows, int kVectors>
void ChunksTile(const QuantizedChunks& in, Index row, const Product& p, float* c) {
  constexpr int kParts = kRows % 4 == 0 ? 4 : kRows % 2 == 0 ? 2 : 1;
  constexpr Index kPairs = kChunk / 2;
  const ChunkDecoder decode(in.code);
  const std::uint8_t* packed = in.At(row, 0);
  const auto* panel = static_cast<const std::uint32_t*>(p.panel);
  // The same chunks of the rows that come next.
  const Index ahead = kRows * in.row_bytes;
  __m512 sum[kRows][kVectors];
  LoadSums(p, c, sum);
  alignas(64) std::uint32_t buffer[2][kRows][kPairs];
  const auto decode_rows = [&](Index chunk, int first, int count) {
    for (int r = first; r < first + count; ++r) {
      const std::uint8_t* from = packed + r * in.row_bytes + chunk * kChunkBytes;
      _mm_prefetch(from + ahead, _MM_HINT_T1);
      const ChunkPairs values = decode(from, in.scales.At(row + r, chunk));
      _mm512_store_si512(buffer[chunk % 2][r], values.first);
      _mm512_store_si512(buffer[chunk % 2][r] + 16, values.second);
    }
  };
  decode_rows(0, 0, kRows);
  for (Index chunk = 0; chunk < in.chunks; ++chunk) {
    const auto& rows = buffer[chunk % 2];
    for (int part = 0; part < kParts; ++part) {
      if (chunk + 1 < in.chunks) decode_rows(chunk + 1, part * kRows / kParts, kRows / kParts);
      const Index end = (part + 1) * kPairs / kParts;
      for (Index k = part * kPairs / kParts; k < end; ++k, panel += p.width) {
        __m512bh lane[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          lane[v] = (__m512bh)_mm512_loadu_si512(panel + v * kVector);
        }
        AddPairs([&](int r) { return static_cast<int>(rows[r][k]); }, lane, sum);
      }
    }
  }
  StoreSums(p, sum, c);
}

template <int kRows, int kVectors>
void ChunksRows(const QuantizedChunks& in, const Product& p, Index r) {
  for (; r + kRows <= p.rows; r += kRows) {
    ChunksTile<kRows, kVectors>(in, r, p, p.c + r * p.c_stride);
  }
  if constexpr (kRows > 1) {
    if (r < p.rows) ChunksRows<kRows / 2, kVectors>(in, p, r);
  }
}

}  // namespace

void Multiply(const Product& p) {
  switch (p.width / kVector) {
    case 1:
      return MultiplyRows<12, 1>(p);
    case 2:
      return MultiplyRows<12, 2>(p);
    case 3:
      return MultiplyRows<8, 3>(p);
    default:
      return MultiplyRows<6, 4>(p);
  }
}

void DecodeRows(const QuantizedChunks& in, void* out, Index stride) {
  const ChunkDecoder decode(in.code);
  for (Index r = 0; r < in.rows; ++r) {
    const std::uint8_t* packed = in.At(r, 0);
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (Index chunk = 0; chunk < in.chunks; ++chunk) {
      const ChunkPairs values = decode(packed + chunk * kChunkBytes, in.scales.At(r, chunk));
      _mm512_storeu_si512(to + chunk * kChunk, values.first);
      _mm512_storeu_si512(to + chunk * kChunk + 32, values.second);
    }
  }
}

void MultiplyChunks(const QuantizedChunks& in, const Product& p) {
  switch (p.width / kVector) {
    case 1:
      return ChunksRows<12, 1>(in, p, 0);
    case 2:
      return ChunksRows<8, 2>(in, p, 0);
    case 3:
      return ChunksRows<6, 3>(in, p, 0);
    default:
      return ChunksRows<4, 4>(in, p, 0);
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
