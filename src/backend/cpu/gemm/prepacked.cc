#include "backend/cpu/gemm/prepacked.h"

#include <algorithm>
#include <cstdint>

#include "backend/cpu/views.h"
#include "quant/layout.h"

namespace qlora::cpu {
namespace {

// The map is there (zeros) even for scales without codes: panels begin at one offset for all
// weights.
constexpr std::int64_t kScaleMapBytes = 4 * 256;
// Kernels prefetch and load whole 64-byte vectors, of which the last may end beyond the last panel.
constexpr std::int64_t kPadding = 64;

std::int64_t PrepackedPanelBytes(std::int64_t cols, std::int64_t scale_bytes) {
  const std::int64_t chunks = cols / kChunk;
  return RoundUp(chunks, kPrepackedGroup) * kPrepackedRows * scale_bytes +
         chunks * kPrepackedChunkBytes;
}
std::int64_t PrepackedPanelBytes(const QuantizedView& q) {
  return PrepackedPanelBytes(q.cols, ScaleBytes(q.scale_type));
}

bool HasScaleCodes(const QuantizedView& q) { return q.scale_type == ScaleType::kDoubleBnb; }

void PackMap(const PrepackedKernels& kernels, const QuantizedView& q, std::byte* map) {
  if (HasScaleCodes(q)) return kernels.pack_scale_map(q.nested.map, map);
  std::fill_n(map, kScaleMapBytes, std::byte{0});
}

}  // namespace

std::size_t PrepackedBytes(const Kernels& kernels, const QuantizedView& q) {
  // 0 means that the weight stays row-major: panels hold whole chunks of whole groups of 16 rows,
  // one scale each, and any other shape would need kernels with remainders in their inner loop.
  const bool scales =
      q.scale_type == ScaleType::kF32 || q.nested.block_size == ChunkScales::kNestedBlock;
  if (kernels.prepacked == nullptr || !scales || q.block_size != kChunk || q.cols % kChunk != 0 ||
      q.rows % kPrepackedRows != 0) {
    return 0;
  }
  return kScaleMapBytes + q.rows / kPrepackedRows * PrepackedPanelBytes(q) + kPadding;
}

void Prepack(const Machine& machine, const QuantizedView& q, std::byte* out) {
  const PrepackedKernels& kernels = *machine.kernels.prepacked;
  const std::int64_t panels = q.rows / kPrepackedRows;
  const std::int64_t bytes = PrepackedPanelBytes(q);
  std::byte* first = out + kScaleMapBytes;
  PackMap(kernels, q, out);
  std::fill_n(first + panels * bytes, kPadding, std::byte{0});
  machine.context.ParallelFor(panels, [&](std::int64_t panel, int) {
    kernels.pack_panel(q, panel * kPrepackedRows, first + panel * bytes);
  });
}

PrepackedPanels::PrepackedPanels(const PrepackedKernels& kernels, const WeightView& weight,
                                 std::byte* room)
    : kernels_(kernels), weight_(weight), room_(room) {
  if (!are_stored()) PackMap(kernels, weight.quantized, room);
}

std::int64_t PrepackedPanels::RoomBytes(std::int64_t cols) {
  // The room is planned before weights are known: float32 scales are the largest, whichever is
  // read.
  constexpr std::int64_t kMostScaleBytes = 4;
  return kScaleMapBytes + PrepackedPanelBytes(RoundUp(cols, kChunk), kMostScaleBytes) + kPadding;
}

PrepackedRows PrepackedPanels::Rows(std::int64_t row, std::int64_t rows) const {
  const QuantizedView& q = weight_.quantized;
  const std::byte* map = are_stored() ? weight_.prepacked : room_;
  PrepackedRows out = {.panels = map + kScaleMapBytes,
                       .panel_bytes = PrepackedPanelBytes(q),
                       .rows = rows,
                       .chunks = q.cols / kChunk,
                       .code = q.code,
                       .scale_map = HasScaleCodes(q) ? map : nullptr,
                       .nested_scales = q.nested.absmax,
                       .offset = q.nested.offset,
                       .first = row * (q.cols / kChunk)};
  if (are_stored()) {
    out.panels += row / kPrepackedRows * out.panel_bytes;
    return out;
  }
  // The room holds one panel: a repacked panel must be used before the next call of Rows.
  kernels_.pack_panel(q, row, room_ + kScaleMapBytes);
  // Prefetches the row-major rows of the next panel.
  out.ahead = reinterpret_cast<std::intptr_t>(q.packed) + (row + kPrepackedRows) * (q.cols / 2) -
              reinterpret_cast<std::intptr_t>(out.panels);
  return out;
}

}  // namespace qlora::cpu
