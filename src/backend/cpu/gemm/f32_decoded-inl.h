// Decoding 4-bit weights to float32 operands, alone and in the course of products; contracts:
// Kernels in kernels.h. Included once per target by kernels.cc.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_DECODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_DECODED_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_DECODED_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_DECODED_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/gemm/f32_format-inl.h"
#include "backend/cpu/gemm/f32_tile-inl.h"
#include "backend/cpu/gemm/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

template <bool kRound>
void DecodeRows(const QuantizedChunks& in, void* out, std::int64_t stride) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    float* to = static_cast<float*>(out) + r * stride;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk, to += kChunk) {
      DecodeChunk<kRound>(in, r, chunk, [&](std::int64_t i) { return to + i; });
    }
  }
}

// One chunk of rows [row, row + rows) as panels: the 64 columns are the lanes of kChunk / kPanel
// panels of `rows` values of k each.
template <bool kRound>
void DecodePanels(const QuantizedChunks& in, std::int64_t row, std::int64_t rows,
                  std::int64_t chunk, float* panels) {
  static_assert(kPanel % kDecoded == 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    DecodeChunk<kRound>(in, row + r, chunk, [&](std::int64_t i) {
      return panels + (i / kPanel * rows + r) * kPanel + i % kPanel;
    });
  }
}

// With few rows, fewer rows of the weight are decoded at a time, so that panels stay in the
// first-level cache.
constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kFewDecodedRows = 128;
static_assert(kFewDecodedRows <= kDecodedRows);

template <bool kRound>
void MultiplyDecodedPanels(const QuantizedChunks& in, void* panels, const Product& product) {
  const bool few = product.rows <= kFewRows;
  const std::int64_t most = few ? kFewDecodedRows : kDecodedRows;
  for (std::int64_t k = 0; k < in.rows; k += most) {
    const std::int64_t rows = std::min(most, in.rows - k);
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      auto* panel = static_cast<float*>(panels);
      DecodePanels<kRound>(in, k, rows, chunk, panel);
      Product part = product;
      part.k = rows;
      part.a = static_cast<const float*>(product.a) + k;
      part.add = product.add || k > 0;
      part.width = kPanel;
      // The rows that come next. A line holds two chunks of a row.
      if (few && chunk == 0 && k + most < in.rows) {
        part.fetch = in.At(k + most, 0);
        part.fetch_lines = std::min(most, in.rows - k - most);
        part.fetch_stride = in.row_bytes;
      }
      for (std::int64_t lane = 0; lane < kChunk; lane += kPanel, panel += rows * kPanel) {
        part.panel = panel;
        part.c = product.c + chunk * kChunk + lane;
        Multiply(part);
        part.fetch_lines = 0;  // once is enough
      }
    }
  }
}

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_DECODED_INL_H_
