// 4-bit weights in the order in which a product with few rows of x reads them: one long stream, 16
// rows side by side as the lanes of a vector. Machines with AVX512_VBMI have kernels for this
// order.
//
// A prepacked weight (O, I) is a map, O / 16 panels, and 64 bytes more, because vectors may be read
// from any byte of a panel.
//
//   map | panel of rows 0 ... 15 | panel of rows 16 ... 31 | ... | padding
//         |
//         +-- group of 4 chunks | group of 4 chunks | ... (the last one may have fewer chunks)
//               |
//               +-- scales of 4 chunks | chunk | chunk | chunk | chunk     512 bytes per chunk
//
// The map (4, 256) holds bytes 0 ... 3 of the float32 values of the scales' codes, each byte in a
// separate table, because processors look up bytes. The map is unused where scales are float32.
//
// A group always has the scales of 4 chunks:
//   float32 (4 chunks, 16 rows), or
//   codes (4 quarters, 4 chunks, 4 rows), of which quarter q has rows 4 q ... 4 q + 3.
//
// A chunk is (8, 16) words of 32 bits, of which word (i, r) holds columns 8 i ... 8 i + 7 of row r
// in the order of the row-major weight.
#ifndef QLORA_BACKEND_CPU_GEMM_PREPACKED_H_
#define QLORA_BACKEND_CPU_GEMM_PREPACKED_H_

#include <cstddef>

#include "backend/backend.h"
#include "backend/cpu/machine.h"

namespace qlora::cpu {

inline constexpr std::int64_t kPrepackedRows = 16;
inline constexpr std::int64_t kPrepackedGroup = 4;  // chunks whose scales are stored together
inline constexpr std::int64_t kPrepackedChunkBytes = kPrepackedRows * kChunkBytes;

// Panels of kPrepackedRows rows of a weight.
struct PrepackedRows {
  const std::byte* panels = nullptr;  // aligned to 64 bytes; up to 3 more are read beyond the last
  std::int64_t panel_bytes = 0;       // from one panel to the next
  std::int64_t rows = 0;              // a multiple of kPrepackedRows
  std::int64_t chunks = 0;            // columns / kChunk
  const float* code = nullptr;        // 16 values
  // Null where scales are float32; otherwise a scale is map[code] * nested scale + offset.
  const std::byte* scale_map = nullptr;  // (4, 256)
  const float* nested_scales = nullptr;  // one per ChunkScales::kNestedBlock chunks of the weight
  float offset = 0;
  std::int64_t first = 0;     // chunks of the weight before these rows
  std::int64_t ahead = 8192;  // bytes from the read position to the prefetched one
};

// The size of prepacked q; 0 where these kernels have no use for it, or q cannot be prepacked:
// other shapes than whole panels and chunks, other blocks than a chunk, nested blocks of another
// length than ChunkScales::kNestedBlock.
std::size_t PrepackedBytes(const Kernels& kernels, const QuantizedView& q);

// out: PrepackedBytes(machine.kernels, q), not 0, aligned to 64 bytes.
void Prepack(const Machine& machine, const QuantizedView& q, std::byte* out);

// The panels of a weight with PrepackedBytes > 0: stored in weight.prepacked, or, if it is null,
// packed one by one into `room` when they are asked for.
class PrepackedPanels {
 public:
  // room: RoomBytes(weight.cols()) bytes, aligned to 64; not used if weight.prepacked is not null.
  PrepackedPanels(const PrepackedKernels& kernels, const WeightView& weight, std::byte* room);
  static std::int64_t RoomBytes(std::int64_t cols);

  bool are_stored() const { return weight_.prepacked != nullptr; }
  // Rows [row, row + rows), both multiples of kPrepackedRows; `rows` is kPrepackedRows unless
  // panels are stored. Valid until the next call.
  PrepackedRows Rows(std::int64_t row, std::int64_t rows) const;

 private:
  const PrepackedKernels& kernels_;
  const WeightView& weight_;
  std::byte* room_;
};

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_PREPACKED_H_
