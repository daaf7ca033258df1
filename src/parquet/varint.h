// Numbers of variable length: 7 bits a byte, lowest first; the eighth bit says that more follow.
#ifndef QLORA_PARQUET_VARINT_H_
#define QLORA_PARQUET_VARINT_H_

#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace qlora::parquet {

// The number at `position`, which moves behind it. Errors: InvalidInput for bytes that end too
// early and for a number of more than 64 bits.
inline std::uint64_t TakeVarint(std::string_view bytes, std::size_t& position) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (position == bytes.size()) ThrowInvalidInput("a number ends too early");
    const auto byte = static_cast<std::uint8_t>(bytes[position++]);
    if (shift == 63 && byte > 1) break;
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  ThrowInvalidInput("a number has more than 64 bits");
}

// 0, 1, 2, 3, 4 ... mean 0, -1, 1, -2, 2 ...
inline std::int64_t DecodeZigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_VARINT_H_
