// 4-bit weights as operands in bfloat16 (see bf16_tile.cc).
#include <algorithm>

#include "backend/cpu/arm/bf16.h"
#include "backend/cpu/arm/bf16_lanes-inl.h"

HWY_PUSH_ATTRIBUTES(QLORA_NEON_BF16)

namespace qlora::cpu::bf16 {
namespace {

// The values of a chunk.
HWY_INLINE void DecodeChunk(const QuantizedChunks& in, std::int64_t row, std::int64_t chunk,
                            std::uint16_t* out) {
  const Table table(in.code, in.scales.At(row, chunk));
  const std::uint8_t* packed = in.At(row, chunk);
  for (std::int64_t i = 0; i < kChunk; i += 4 * kVector) {
    uint16x8_t values[4];
    table.Decode(packed + i / 2, values);
    for (std::int64_t v = 0; v < 4; ++v) vst1q_u16(out + i + v * kVector, values[v]);
  }
}

// One chunk of rows [row, row + rows) as panels whose lanes are the columns.
void DecodePanels(const QuantizedChunks& in, std::int64_t row, std::int64_t rows,
                  std::int64_t chunk, std::uint16_t* panels) {
  const std::int64_t panel_values = RoundUp(rows, kStep) * kPanel;
  for (std::int64_t r = 0; r < rows; r += kStep) {
    std::uint16_t values[kStep][kChunk] = {};
    for (std::int64_t j = 0; j < std::min(kStep, rows - r); ++j) {
      DecodeChunk(in, row + r + j, chunk, values[j]);
    }
    static_assert(kPanel == kVector);
    for (std::int64_t i = 0; i < kChunk; i += kPanel) {
      const uint16x8x4_t step = {{vld1q_u16(values[0] + i), vld1q_u16(values[1] + i),
                                  vld1q_u16(values[2] + i), vld1q_u16(values[3] + i)}};
      vst4q_u16(panels + i / kPanel * panel_values + r * kPanel, step);
    }
  }
}

}  // namespace

void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    auto* to = static_cast<std::uint16_t*>(out) + r * stride;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      DecodeChunk(in, r, chunk, to + chunk * kChunk);
    }
  }
}

void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  for (std::int64_t k = 0; k < in.rows; k += kDecodedRows) {
    const std::int64_t rows = std::min(kDecodedRows, in.rows - k);
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      auto* panel = static_cast<std::uint16_t*>(panels);
      DecodePanels(in, k, rows, chunk, panel);
      Product part = product;
      part.k = RoundUp(rows, kStep);
      part.a = static_cast<const std::uint16_t*>(product.a) + k;
      part.add = product.add || k > 0;
      part.width = kPanel;
      for (std::int64_t lane = 0; lane < kChunk; lane += kPanel, panel += part.k * kPanel) {
        part.panel = panel;
        part.c = product.c + chunk * kChunk + lane;
        Multiply(part);
      }
    }
  }
}

}  // namespace qlora::cpu::bf16
HWY_POP_ATTRIBUTES
