// 4-bit weights in the order in which a product with few rows of x reads them: one long stream, 16
// rows side by side as the lanes of a vector.
//
// A prepacked weight (O, I) is a map, O / 16 panels, and a line of the cache more, because vectors
// may be read from any byte of a panel.
// The map (4, 256): bytes 0 ... 3 of the float32 values that the codes of scales stand for, apart,
// because processors look up bytes; unused where scales are float32.
// A panel is a run of groups of 4 chunks of 64 columns; the last one may have fewer chunks. A group
// begins with its scales, always 4 chunks of them:
//   float32 (4 chunks, 16 rows), or
//   codes (4 quarters, 4 chunks, 4 rows), of which quarter q has rows 4 q ... 4 q + 3;
// then come 512 bytes for each chunk: (8, 16) words of 32 bits, of which word (i, r) holds columns
// 8 i ... 8 i + 7 of row r as they lie in the row-major weight.
#ifndef QLORA_BACKEND_CPU_PREPACKED_H_
#define QLORA_BACKEND_CPU_PREPACKED_H_

#include <cstddef>

#include "backend/cpu/kernels.h"
#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora::cpu {

inline constexpr std::int64_t kScaleMapBytes = 4 * 256;
inline constexpr std::int64_t kPrepackedPadding = 64;

// 0 for weights that cannot be prepacked: other than whole panels and chunks, other blocks than a
// chunk, nested blocks of another length than ChunkScales::kNestedBlock.
std::size_t PrepackedBytes(const QuantizedView& q);

// out: PrepackedBytes(q), aligned to 64 bytes.
void Prepack(Context& context, const QuantizedView& q, std::byte* out);

// Rows [row, row + rows) of prepacked q; both are multiples of kPrepackedRows.
PrepackedRows RowsOfPrepacked(const QuantizedView& q, const std::byte* prepacked, std::int64_t row,
                              std::int64_t rows);

// Prepacking on the way, for q with PrepackedBytes(q) > 0, in a room of PrepackedRoom(q.cols) bytes
// that is aligned to 64: PrepackMap once, then 16 rows after the other. What PrepackRows returns
// refers to the room and to q.
std::size_t PrepackedRoom(std::int64_t cols);
void PrepackMap(const QuantizedView& q, std::byte* room);
PrepackedRows PrepackRows(const QuantizedView& q, std::int64_t row, std::byte* room);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_PREPACKED_H_
