#include "backend/cpu/prepacked.h"

#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels_prepacked.h"
#include "quant/layout.h"

namespace qlora::cpu {
namespace {

constexpr std::int64_t kRows = kPrepackedRows;
constexpr std::int64_t kGroup = kPrepackedGroup;

std::int64_t PanelBytes(const QuantizedView& q) {
  const std::int64_t chunks = q.cols / kChunk;
  const std::int64_t groups = (chunks + kGroup - 1) / kGroup;
  const auto scale = static_cast<std::int64_t>(ScaleBytes(q.scale_type));
  return groups * kGroup * kRows * scale + chunks * kPrepackedChunkBytes;
}

bool HasScaleCodes(const QuantizedView& q) { return q.scale_type == ScaleType::kDoubleBnb; }

// `rows` rows from `row` on, whose panels are these.
PrepackedRows Panels(const QuantizedView& q, const std::byte* map, const std::byte* panels,
                     std::int64_t row, std::int64_t rows) {
  return {.panels = panels,
          .panel_bytes = PanelBytes(q),
          .rows = rows,
          .chunks = q.cols / kChunk,
          .code = q.code,
          .scale_map = HasScaleCodes(q) ? map : nullptr,
          .nested_scales = q.nested.absmax,
          .offset = q.nested.offset,
          .first = row * (q.cols / kChunk)};
}

}  // namespace

std::size_t PrepackedBytes(const QuantizedView& q) {
  const bool scales =
      q.scale_type == ScaleType::kF32 || q.nested.block_size == ChunkScales::kNestedBlock;
  if (!scales || q.block_size != kChunk || q.cols % kChunk != 0 || q.rows % kRows != 0) {
    return 0;
  }
  return static_cast<std::size_t>(kScaleMapBytes + q.rows / kRows * PanelBytes(q) +
                                  kPrepackedPadding);
}

void PrepackMap(const QuantizedView& q, std::byte* prepacked) {
  if (HasScaleCodes(q)) {
    PackScaleMap(q.nested.map, prepacked);
  } else {
    std::fill_n(prepacked, kScaleMapBytes, std::byte{0});
  }
}

void Prepack(Context& context, const QuantizedView& q, std::byte* out) {
  PrepackMap(q, out);
  std::fill_n(out + PrepackedBytes(q) - kPrepackedPadding, kPrepackedPadding, std::byte{0});
  context.ParallelFor(q.rows / kRows, [&](std::int64_t panel, int) {
    PrepackPanel(q, panel * kRows, out + kScaleMapBytes + panel * PanelBytes(q));
  });
}

PrepackedRows RowsOfPrepacked(const QuantizedView& q, const std::byte* prepacked, std::int64_t row,
                              std::int64_t rows) {
  return Panels(q, prepacked, prepacked + kScaleMapBytes + row / kRows * PanelBytes(q), row, rows);
}

std::size_t PrepackedRoom(std::int64_t cols) {
  const QuantizedView q = {.rows = kRows, .cols = (cols + kChunk - 1) / kChunk * kChunk};
  return static_cast<std::size_t>(kScaleMapBytes + PanelBytes(q) + kPrepackedPadding);
}

PrepackedRows PrepackRows(const QuantizedView& q, std::int64_t row, std::byte* room) {
  std::byte* panel = room + kScaleMapBytes;
  PrepackPanel(q, row, panel);
  PrepackedRows rows = Panels(q, room, panel, row, kRows);
  // The rows that come next.
  rows.ahead = reinterpret_cast<std::intptr_t>(q.packed) + (row + kRows) * (q.cols / 2) -
               reinterpret_cast<std::intptr_t>(panel);
  return rows;
}

}  // namespace qlora::cpu
