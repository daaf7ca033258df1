// ggml's block formats: the quantized tensor types of GGUF files.
//
// A row of weights is cut into blocks of 32 to 256 values, and no block crosses the end of a row. A
// block is a few scales and a small code for each value. Some formats have one scale d, most
// in float16, and a value is
//   d * (code - zero)    Q4_0, Q5_0, Q8_0, TQ1_0, TQ2_0, Q2_0
//   d or -d              Q1_0
//   d * code + m         Q4_1, Q5_1
//   d * table[code]      IQ4_NL, MXFP4, NVFP4, whose tables are finer near zero
// The other formats of 256 values have a second level: small integers multiply d in each sub-block
// of 16 or 32.
//   (d * s) * (code - zero), (d * s) * table[code]    Q3_K, Q6_K, IQ4_XS
//   (d * s) * code - dmin * m                         Q2_K, Q4_K, Q5_K
//   (d * s) * grid[index] with signs                  IQ2, IQ3: an index for 4 or 8 values
//   (d * s) * (grid[index] + shift)                   IQ1: shift is 1/8 or -1/8
//
// decode.h turns blocks into numbers, encode.h numbers into blocks. Multi-byte numbers are
// little-endian, and blocks have no alignment: in a file they follow one another without padding.
#ifndef QLORA_GGML_BLOCK_FORMAT_H_
#define QLORA_GGML_BLOCK_FORMAT_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace qlora {

enum class BlockFormat : std::uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ3_XXS,
  kIQ1_S,
  kIQ4_NL,
  kIQ3_S,
  kIQ2_S,
  kIQ4_XS,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,
};

// What an encoder does with the importance of columns. kNeeded: without it, codes are too few to be
// of use, and llama.cpp writes none.
enum class Importance : std::uint8_t { kIgnored, kUsed, kNeeded };

struct BlockFormatInfo {
  BlockFormat format;
  const char* name;         // as GGUF tools spell it
  std::uint32_t ggml_type;  // the number of the tensor type in files
  std::int64_t values;      // of a block
  std::int64_t bytes;       // of a block
  Importance importance;
  bool encodable;  // by EncodeBlocks
};

// All formats, in the order of the enumeration.
std::span<const BlockFormatInfo> BlockFormats();
const BlockFormatInfo& InfoOf(BlockFormat format);

// Return nullptr when there is no such format.
const BlockFormatInfo* FindBlockFormat(std::uint32_t ggml_type);
const BlockFormatInfo* FindBlockFormat(std::string_view name);

// Values of the largest block.
inline constexpr std::int64_t kMaxBlockValues = 256;

}  // namespace qlora

#endif  // QLORA_GGML_BLOCK_FORMAT_H_
