// B (O, R) of an adapter in the order in which few rows are multiplied with it: panels of
// kPackedRows of its rows, each transposed. Row p * R + r of the packed matrix has column r of rows
// p * kPackedRows and those that follow, and zeros where there are no more.
#ifndef QLORA_BACKEND_PACKED_LORA_H_
#define QLORA_BACKEND_PACKED_LORA_H_

#include <cstdint>

namespace qlora {

inline constexpr std::int64_t kPackedRows = 64;

// The rows of the packed matrix.
inline std::int64_t PackedRows(std::int64_t out_features, std::int64_t rank) {
  return (out_features + kPackedRows - 1) / kPackedRows * rank;
}

}  // namespace qlora

#endif  // QLORA_BACKEND_PACKED_LORA_H_
