// Codebooks and decision thresholds of the 4-bit and 8-bit codes.
#ifndef QLORA_QUANT_TABLES_H_
#define QLORA_QUANT_TABLES_H_

#include <array>
#include <bit>
#include <cstdint>

#include "qlora/nf4.h"

namespace qlora {

// The code of x is codes[number of thresholds strictly below x]; thresholds ascend.
struct EncodeTable {
  std::array<float, 15> thresholds;
  std::array<std::uint8_t, 16> codes;
  std::uint8_t zero_block_code;
};

inline constexpr std::array<std::uint8_t, 16> kSortedNf4Codes = {0, 1, 2,  3,  4,  5,  6,  7,
                                                                 8, 9, 10, 11, 12, 13, 14, 15};
// FP4 nibbles by ascending value. Zero occupies two places, both coded 0.
inline constexpr std::array<std::uint8_t, 16> kSortedFp4Codes = {11, 10, 13, 12, 15, 14, 9, 0,
                                                                 0,  1,  6,  7,  4,  5,  2, 3};

constexpr std::array<float, 15> Midpoints(const std::array<float, 16>& values,
                                          const std::array<std::uint8_t, 16>& order) {
  std::array<float, 15> out{};
  for (std::size_t k = 0; k < out.size(); ++k) {
    out[k] = (values[order[k]] + values[order[k + 1]]) / 2;
  }
  return out;
}

template <std::size_t N>
constexpr std::array<float, N> FromBits(const std::array<std::uint32_t, N>& bits) {
  std::array<float, N> out{};
  for (std::size_t i = 0; i < N; ++i) out[i] = std::bit_cast<float>(bits[i]);
  return out;
}

inline constexpr EncodeTable kNf4CpuTable = {Midpoints(kNf4Codebook, kSortedNf4Codes),
                                             kSortedNf4Codes, 7};
inline constexpr EncodeTable kFp4CpuTable = {Midpoints(kFp4Codebook, kSortedFp4Codes),
                                             kSortedFp4Codes, 0};

// The literals of bitsandbytes' CUDA kernels as bits: thresholds 0, 8, 12 and 14 are one unit in
// the last place away from the midpoints.
inline constexpr EncodeTable kNf4CudaTable = {
    FromBits<15>({0xbf591cd9, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec, 0xbe0d38bc,
                  0xbd3a7871, 0x3d22faff, 0x3df64863, 0x3e5067e0, 0x3e9582d4, 0x3ec753f9,
                  0x3f006d03, 0x3f248daf, 0x3f5c89d9}),
    kSortedNf4Codes, 0};

// CUDA codes FP4 by |x| > t and a sign bit for x < 0. So a negative tie goes up, toward zero, which
// is "strictly above the float before -t"; and a negative value in the zero cell has code 8.
inline constexpr std::array<std::uint32_t, 7> kFp4CudaBits = {
    0x3b2aaab9, 0x3db00000, 0x3e555555, 0x3e955555, 0x3ed55556, 0x3f155550, 0x3f555555};
constexpr EncodeTable MakeFp4CudaTable() {
  EncodeTable table{{}, kSortedFp4Codes, 0};
  table.codes[7] = 8;
  for (std::size_t k = 0; k < kFp4CudaBits.size(); ++k) {
    table.thresholds[8 + k] = std::bit_cast<float>(kFp4CudaBits[k]);
    table.thresholds[6 - k] = -std::bit_cast<float>(kFp4CudaBits[k] + 1);
  }
  table.thresholds[7] = -std::bit_cast<float>(std::uint32_t{1});
  return table;
}
inline constexpr EncodeTable kFp4CudaTable = MakeFp4CudaTable();

// The rule must be one of bitsandbytes'.
const EncodeTable& EncodeTableOf(QuantType type, EncodeRule rule);

// The values of a codebook by nibble. torchao's are rounded to four decimals and then to `dtype`.
const std::array<float, 16>& CodebookOf(QuantType type, EncodeRule rule, DType dtype);

// bitsandbytes' 8-bit code for signed values: 256 ascending entries, 0 at index 127, from -0.99297
// to 1. For e = 0 .. 6 it has the 2^e midpoints of equal steps from 0.1 to 1, times 10^(e - 6),
// with both signs; and 0 and 1.
extern const std::array<float, 256> kSignedDynamicMap;
inline constexpr std::uint8_t kDynamicMapZero = 127;

}  // namespace qlora

#endif  // QLORA_QUANT_TABLES_H_
