// The vector kernels: encode and decode runs of whole blocks. Each target computes the bytes that
// the scalar code in encode.h and decode.h defines.
#ifndef QLORA_QUANT_KERNELS_H_
#define QLORA_QUANT_KERNELS_H_

#include <cstdint>

#include "quant/encode_table.h"

namespace qlora {

// Kernels take blocks of a multiple of this many values.
inline constexpr std::int64_t kKernelStep = 32;

// Consecutive whole blocks in contiguous memory.
struct EncodeRun {
  const void* x;  // (blocks * block_size) of dtype
  DType dtype;    // F32, BF16 or F16
  std::int64_t blocks;
  std::int64_t block_size;  // a multiple of kKernelStep
  const EncodeTable* table;
  std::uint8_t* packed;  // (blocks * block_size / 2)
  float* scales;         // (blocks) out: absmax; in where has_scales
  // The caller has chosen the scales, none below half the absmax of its block, and x is finite.
  bool has_scales;
};

// Returns run.blocks, or the first block with NaN or Inf; then nothing has a defined content.
std::int64_t EncodeBlocks(const EncodeRun& run);

struct DecodeRun {
  const std::uint8_t* packed;  // (blocks * block_size / 2)
  std::int64_t blocks;
  std::int64_t block_size;  // a multiple of kKernelStep
  const float* code;        // (16)
  const float* scales;      // (blocks)
  void* out;                // (blocks * block_size) of dtype
  DType dtype;              // F32, BF16 or F16
  // Write past the caches where `out` is aligned. The caller fences (hwy::FlushStream).
  bool stream;
};

void DecodeBlocks(const DecodeRun& run);

// The scales of the 256 codes in one nested block of double quantization:
// out (256) = map[code] * nested absmax + offset, as LoadScales computes them.
void TabulateScales(const QuantizedView& q, std::int64_t nested_block, float* out);

// The values of one block, divided by their absmax, for the scale search.
struct SearchRun {
  const float* x;        // (n) in [-1, 1]
  const float* weights;  // (n) of the squared errors, or null for 1
  std::int64_t n;        // a multiple of kSearchStep; zeros fill up
  const EncodeTable* table;
  const float* code;  // (16) the value of each code
};
inline constexpr std::int64_t kSearchStep = 16;

// The m for which codes and scale m give the least weighted squared error that the search finds;
// never worse than 1.
float BestMultiplier(const SearchRun& run);

}  // namespace qlora

#endif  // QLORA_QUANT_KERNELS_H_
