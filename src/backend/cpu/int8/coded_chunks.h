// 4-bit values as codes of 8 bits, 64 at a time: a block has 16 codes, which are looked up.
#ifndef QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_
#define QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_

#include <cstdint>

#include "qlora/nf4.h"

namespace qlora::cpu {

// Whole chunks of one row.
struct ChunkRun {
  const std::uint8_t* packed;
  std::int64_t chunks;
  const float* code;       // 16 values
  const float* scales;     // of blocks
  std::int64_t chunk;      // the first one, counted from the begin of scales[0]
  std::int64_t per_block;  // chunks
  float inverse;           // of the scale of the row
};

// Rows that are transposed at a time.
inline constexpr std::int64_t kTransposedRows = 16;
// out(i, r) = in(r, i) for r < kTransposedRows and i < cols, which are rounded up to
// kTransposedRows; rows of in are kChunk apart.
void TransposeCodes(const std::uint8_t* in, std::int64_t cols, std::uint8_t* out,
                    std::int64_t stride);

// out (chunks * kChunk): codes + 128.
void CodeChunks(const ChunkRun& run, std::uint8_t* out);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_CHUNKS_H_
