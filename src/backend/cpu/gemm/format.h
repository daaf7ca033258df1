// 4-bit weights in the form in which kernels read them: chunks of 64 columns of a row, each with
// one scale. Row-major weights are described here, prepacked ones in prepacked.h.
//
// A new format of 4-bit weights touches these places: this description and weight_rows.cc, which
// makes it of a QuantizedView; f32_format-inl.h; x86/bf16_format-inl.h and arm/bf16_lanes-inl.h;
// and int8/coded_chunks.cc. All but the first two say how consecutive values are decoded. Tiles,
// packing and dot products only call those decoders.
#ifndef QLORA_BACKEND_CPU_GEMM_FORMAT_H_
#define QLORA_BACKEND_CPU_GEMM_FORMAT_H_

#include <cstdint>

namespace qlora::cpu {

inline constexpr std::int64_t kChunk = 64;  // columns
inline constexpr std::int64_t kChunkBytes = kChunk / 2;

// The stored scales of chunks: as numbers; or, with double quantization, as codes that
// are looked up in the table of their nested block, which is faster than decoding each scale
// beforehand.
struct ChunkScales {
  const float* values = nullptr;        // one per chunk; or tables of kNestedBlock scales
  std::int64_t stride = 0;              // chunks from one row to the next
  const std::uint8_t* codes = nullptr;  // null, or one per chunk
  std::int64_t first = 0;  // the first chunk, counted from the start of the first table

  float At(std::int64_t row, std::int64_t chunk) const {
    const std::int64_t i = row * stride + chunk;
    return codes == nullptr ? values[i] : values[((first + i) & -kNestedBlock) + codes[i]];
  }
  // The scales from chunk `chunk` of each row on.
  ChunkScales From(std::int64_t chunk) const {
    if (codes == nullptr) return {.values = values + chunk, .stride = stride};
    return {.values = values, .stride = stride, .codes = codes + chunk, .first = first + chunk};
  }

  static constexpr std::int64_t kNestedBlock = 256;
};

// A part of a row-major 4-bit matrix whose columns start and end at multiples of 64 and whose
// chunks are each within one block.
struct QuantizedChunks {
  const std::uint8_t* packed = nullptr;  // of the first chunk
  std::int64_t row_bytes = 0;            // from one row to the next
  ChunkScales scales;
  const float* code = nullptr;  // 16 values
  std::int64_t rows = 0;
  std::int64_t chunks = 0;  // columns / kChunk

  // The kChunkBytes bytes of a chunk.
  const std::uint8_t* At(std::int64_t row, std::int64_t chunk) const {
    return packed + row * row_bytes + chunk * kChunkBytes;
  }
};

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_GEMM_FORMAT_H_
