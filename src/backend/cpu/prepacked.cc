#include "backend/cpu/prepacked.h"

#include <algorithm>
#include <cstring>

#include "quant/layout.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kRows = kPrepackedRows;
constexpr std::int64_t kGroup = kPrepackedGroup;
constexpr std::int64_t kWord = 4;  // bytes

std::int64_t PanelBytes(const QuantizedView& q) {
  const std::int64_t chunks = q.cols / kChunk;
  const std::int64_t groups = (chunks + kGroup - 1) / kGroup;
  const auto scale = static_cast<std::int64_t>(ScaleBytes(q.scale_type));
  return groups * kGroup * kRows * scale + chunks * kPrepackedChunkBytes;
}

void PackScaleMap(const QuantizedView& q, std::byte* out) {
  std::fill_n(out, kScaleMapBytes, std::byte{0});
  if (q.scale_type != ScaleType::kDoubleBnb) return;
  for (std::int64_t i = 0; i < 256; ++i) {
    std::byte bytes[4];
    std::memcpy(bytes, q.nested_code + i, 4);
    for (std::int64_t b = 0; b < 4; ++b) out[b * 256 + i] = bytes[b];
  }
}

// The scales of chunks [chunk, chunk + n) of the rows of a panel.
void PackScales(const QuantizedView& q, std::int64_t row, std::int64_t chunk, std::int64_t n,
                std::byte* out) {
  const std::int64_t per_row = q.cols / kChunk;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      const std::int64_t block = (row + r) * per_row + chunk + c;
      if (q.scale_type == ScaleType::kF32) {
        std::memcpy(out + (c * kRows + r) * 4, static_cast<const float*>(q.scales) + block, 4);
      } else {
        out[(r / 4 * kGroup + c) * 4 + r % 4] = static_cast<const std::byte*>(q.scales)[block];
      }
    }
  }
}

void PackValues(const QuantizedView& q, std::int64_t row, std::int64_t chunk, std::byte* out) {
  const std::int64_t stride = q.cols / 2;
  const std::uint8_t* from = q.packed + row * stride + chunk * (kChunk / 2);
  for (std::int64_t i = 0; i < kChunk / 8; ++i) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::memcpy(out + (i * kRows + r) * kWord, from + r * stride + i * kWord, kWord);
    }
  }
}

}  // namespace

std::size_t PrepackedBytes(const QuantizedView& q) {
  const bool scales =
      q.scale_type == ScaleType::kF32 ||
      (q.scale_type == ScaleType::kDoubleBnb && q.nested_block_size == ChunkScales::kNestedBlock);
  if (!scales || !q.plain() || q.block_size != kChunk || q.cols % kChunk != 0 ||
      q.rows % kRows != 0) {
    return 0;
  }
  return static_cast<std::size_t>(kScaleMapBytes + q.rows / kRows * PanelBytes(q));
}

void Prepack(Context& context, const QuantizedView& q, std::byte* out) {
  PackScaleMap(q, out);
  const std::int64_t chunks = q.cols / kChunk;
  const auto scale_bytes = static_cast<std::int64_t>(ScaleBytes(q.scale_type));
  context.ParallelFor(q.rows / kRows, [&](std::int64_t panel, int) {
    std::byte* to = out + kScaleMapBytes + panel * PanelBytes(q);
    for (std::int64_t chunk = 0; chunk < chunks; chunk += kGroup) {
      const std::int64_t n = std::min(kGroup, chunks - chunk);
      std::fill_n(to, kGroup * kRows * scale_bytes, std::byte{0});
      PackScales(q, panel * kRows, chunk, n, to);
      to += kGroup * kRows * scale_bytes;
      for (std::int64_t c = 0; c < n; ++c, to += kPrepackedChunkBytes) {
        PackValues(q, panel * kRows, chunk + c, to);
      }
    }
  });
}

PrepackedRows RowsOfPrepacked(const QuantizedView& q, const std::byte* prepacked, std::int64_t row,
                              std::int64_t rows) {
  const std::int64_t panel_bytes = PanelBytes(q);
  const bool doubly = q.scale_type == ScaleType::kDoubleBnb;
  return {.panels = prepacked + kScaleMapBytes + row / kRows * panel_bytes,
          .panel_bytes = panel_bytes,
          .rows = rows,
          .chunks = q.cols / kChunk,
          .code = q.code,
          .scale_map = doubly ? prepacked : nullptr,
          .nested_scales = q.nested_scales,
          .offset = q.offset,
          .first = row * (q.cols / kChunk)};
}

}  // namespace qlora::cpu
