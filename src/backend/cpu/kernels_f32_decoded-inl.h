// Decoding 4-bit rows to float32, alone and on the way to products; contracts: Kernels in
// kernels.h. Included once per target by kernels_f32.cc.
#if defined(QLORA_BACKEND_CPU_KERNELS_F32_DECODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_KERNELS_F32_DECODED_INL_H_
#undef QLORA_BACKEND_CPU_KERNELS_F32_DECODED_INL_H_
#else
#define QLORA_BACKEND_CPU_KERNELS_F32_DECODED_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/f32_operands-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_f32_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <bool kRound>
void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    const std::uint8_t* packed = in.packed + r * in.row_bytes;
    float* to = static_cast<float*>(out) + r * stride;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk, packed += kChunk / 2, to += kChunk) {
      const BlockTable<kRound> table(in.code, in.scales.At(r, chunk));
      for (std::size_t i = 0; i < kChunk; i += 2 * kLanes) table.Decode(packed + i / 2, to + i);
    }
  }
}

// One chunk.
template <bool kRound>
void DecodePanels(const QuantizedChunks& in, void* panels) {
  const auto k = static_cast<std::size_t>(in.rows);
  auto* to = static_cast<float*>(panels);
  for (std::size_t r = 0; r < k; ++r) {
    const std::uint8_t* packed = in.packed + static_cast<std::int64_t>(r) * in.row_bytes;
    const BlockTable<kRound> table(in.code, in.scales.At(static_cast<std::int64_t>(r), 0));
    for (std::size_t i = 0; i < kChunk; i += 2 * kLanes) {
      table.Decode(packed + i / 2, to + (i / kPanel * k + r) * kPanel + i % kPanel);
    }
  }
}

// Few rows decode fewer at a time, so that panels stay in the first-level cache.
constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kFewDecodedRows = 128;
static_assert(kFewDecodedRows <= kDecodedRows);

template <bool kRound>
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  const std::int64_t most = product.rows <= kFewRows ? kFewDecodedRows : kDecodedRows;
  for (std::int64_t k = 0; k < in.rows; k += most) {
    const std::int64_t rows = std::min(most, in.rows - k);
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      QuantizedChunks decoded = in;
      decoded.packed += k * in.row_bytes + chunk * (kChunk / 2);
      decoded.scales.values += k * in.scales.stride + chunk;
      decoded.rows = rows;
      DecodePanels<kRound>(decoded, panels);
      Product part = product;
      part.k = rows;
      part.a = static_cast<const float*>(product.a) + k;
      part.c += chunk * kChunk;
      part.add = product.add || k > 0;
      part.panel = panels;
      part.width = kPanel;
      // A line holds two chunks of a row.
      if (product.rows <= kFewRows && chunk == 0 && k + most < in.rows) {
        part.fetch = decoded.packed + most * in.row_bytes;
        part.fetch_lines = std::min(most, in.rows - k - most);
        part.fetch_stride = in.row_bytes;
      }
      for (std::size_t lane = 0; lane < kChunk; lane += kPanel, part.c += kPanel) {
        Multiply(part);
        part.fetch_lines = 0;  // once is enough
        part.panel = static_cast<const float*>(part.panel) + part.k * kPanel;
      }
    }
  }
}

// A tile of multiply whose rows are decoded 64 values at a time into a buffer in the first-level
// cache.
template <bool kRound, std::size_t kRows, std::size_t kVecs>
void ChunksTile(const QuantizedChunks& in, std::size_t row, const Product& p, float* c) {
  const auto width = static_cast<std::size_t>(p.width);
  const std::uint8_t* packed = in.packed + static_cast<std::int64_t>(row) * in.row_bytes;
  const auto* panel = static_cast<const float*>(p.panel);
  hn::Vec<FloatTag> sum[kRows][kVecs];
  LoadSums(p, c, sum);
  HWY_ALIGN float buffer[kRows][kChunk];
  for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto row_of_tile = static_cast<std::int64_t>(r);
      const std::uint8_t* from = packed + row_of_tile * in.row_bytes + chunk * (kChunk / 2);
      const BlockTable<kRound> table(
          in.code, in.scales.At(static_cast<std::int64_t>(row) + row_of_tile, chunk));
      for (std::size_t i = 0; i < kChunk; i += 2 * kLanes)
        table.Decode(from + i / 2, buffer[r] + i);
    }
    for (std::size_t k = 0; k < kChunk; ++k, panel += width) {
      AddProducts(buffer[0] + k, kChunk, panel, sum);
    }
  }
  StoreSums(p, sum, c);
}

template <bool kRound, std::size_t kRows, std::size_t kVecs>
void ChunksRows(const QuantizedChunks& in, const Product& p, std::size_t r) {
  for (; r + kRows <= static_cast<std::size_t>(p.rows); r += kRows) {
    ChunksTile<kRound, kRows, kVecs>(in, r, p, p.c + r * static_cast<std::size_t>(p.c_stride));
  }
  if constexpr (kRows > 1) {
    if (r < static_cast<std::size_t>(p.rows)) ChunksRows<kRound, kRows / 2, kVecs>(in, p, r);
  }
}

template <bool kRound, std::size_t kVecs>
void ChunksVectors(const QuantizedChunks& in, const Product& p) {
  if (static_cast<std::size_t>(p.width) == kVecs * kLanes) {
    return ChunksRows<kRound, kMostRows<kVecs>, kVecs>(in, p, 0);
  }
  if constexpr (kVecs > 1) ChunksVectors<kRound, kVecs - 1>(in, p);
}

template <bool kRound>
void MultiplyChunks(const QuantizedChunks& in, const Product& p) {
  ChunksVectors<kRound, kVectors>(in, p);
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_KERNELS_F32_DECODED_INL_H_
