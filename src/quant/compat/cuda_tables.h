// The decisions of bitsandbytes' CUDA kernels, as tables for the encoder of src/quant.
#ifndef QLORA_QUANT_COMPAT_CUDA_TABLES_H_
#define QLORA_QUANT_COMPAT_CUDA_TABLES_H_

#include <array>
#include <bit>
#include <cstdint>

#include "quant/encode_table.h"

namespace qlora::compat {

template <std::size_t N>
constexpr std::array<float, N> FromBits(const std::array<std::uint32_t, N>& bits) {
  std::array<float, N> out{};
  for (std::size_t i = 0; i < N; ++i) out[i] = std::bit_cast<float>(bits[i]);
  return out;
}

// The literals of the kernels as bits: thresholds 0, 8, 12 and 14 are one unit in the last place
// away from the midpoints.
inline constexpr EncodeTable kNf4CudaTable =
    MakeEncodeTable(FromBits<15>({0xbf591cd9, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec,
                                  0xbe0d38bc, 0xbd3a7871, 0x3d22faff, 0x3df64863, 0x3e5067e0,
                                  0x3e9582d4, 0x3ec753f9, 0x3f006d03, 0x3f248daf, 0x3f5c89d9}),
                    kSortedNf4Codes, 0, true);
static_assert(kNf4CudaTable.one_comparison);

// The kernels code FP4 by |x| > t and a sign bit for x < 0. So a negative tie goes up, toward zero,
// which is "strictly above the float before -t"; and a negative value in the zero cell has code 8.
constexpr EncodeTable MakeFp4CudaTable() {
  constexpr std::array<std::uint32_t, 7> kBits = {0x3b2aaab9, 0x3db00000, 0x3e555555, 0x3e955555,
                                                  0x3ed55556, 0x3f155550, 0x3f555555};
  Thresholds thresholds{};
  for (std::size_t k = 0; k < kBits.size(); ++k) {
    thresholds[8 + k] = std::bit_cast<float>(kBits[k]);
    thresholds[6 - k] = -std::bit_cast<float>(kBits[k] + 1);
  }
  thresholds[7] = -std::bit_cast<float>(std::uint32_t{1});
  CodeOrder codes = kSortedFp4Codes;
  codes[7] = 8;
  return MakeEncodeTable(thresholds, codes, 0, true);
}
inline constexpr EncodeTable kFp4CudaTable = MakeFp4CudaTable();

constexpr const EncodeTable& CudaTableOf(QuantType type) {
  return type == QuantType::kFp4 ? kFp4CudaTable : kNf4CudaTable;
}

}  // namespace qlora::compat

#endif  // QLORA_QUANT_COMPAT_CUDA_TABLES_H_
