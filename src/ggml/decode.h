// Blocks to numbers. Every value is the exact real number that the block means, rounded once to
// float32, with the sign of zeros that ggml gives: bit for bit what ggml decodes.
#ifndef QLORA_GGML_DECODE_H_
#define QLORA_GGML_DECODE_H_

#include <cstddef>

#include "ggml/block_format.h"
#include "qlora/tensor.h"

namespace qlora {

// values (count * values of a block) = the values of `count` blocks, which begin at any address.
void DecodeBlocks(BlockFormat format, const std::byte* blocks, std::int64_t count, float* values);
// The same, each rounded to bfloat16.
void DecodeBlocks(BlockFormat format, const std::byte* blocks, std::int64_t count,
                  BFloat16* values);

}  // namespace qlora

#endif  // QLORA_GGML_DECODE_H_
