// Runs of blocks to codes and scales: the scale search or the absmax, then the vector kernels, or
// the scalar definition where the kernels do not apply.
#ifndef QLORA_QUANT_BLOCK_ENCODER_H_
#define QLORA_QUANT_BLOCK_ENCODER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "qlora/context.h"
#include "quant/encode_table.h"
#include "quant/scale_search.h"

namespace qlora {

// Values per task: enough to hide the hand-out of tasks, small enough to share work evenly.
inline constexpr std::int64_t kEncodedPerTask = 1 << 18;

// Blocks that follow each other without gaps: number of the first block, flat index of its first
// value, number of values.
struct BlockRun {
  std::int64_t first_block;
  std::int64_t begin;
  std::int64_t count;
};

// Calls encode(run, worker) for runs that make up `size` values in blocks of block_size, in the
// threads of the context. A run begins at an even value, so that no two runs write the same byte.
template <typename Encode>
void ForEachRun(Context& context, std::int64_t size, std::int64_t block_size,
                const Encode& encode) {
  const std::int64_t blocks = BlockCount(size, block_size);
  const std::int64_t per_task = std::max<std::int64_t>(1, kEncodedPerTask / block_size / 2) * 2;
  context.ParallelFor(BlockCount(blocks, per_task), [&](std::int64_t task, int worker) {
    const std::int64_t first = task * per_task;
    const std::int64_t last = std::min(blocks, first + per_task);
    const std::int64_t begin = first * block_size;
    const std::int64_t end = last == blocks ? size : last * block_size;
    encode(BlockRun{first, begin, end - begin}, worker);
  });
}

// One per thread. A matrix without search has its absmax as scale.
class BlockEncoder {
 public:
  BlockEncoder(const EncodeTable& table, std::int64_t block_size, std::optional<ScaleSearch> search)
      : table_(&table), block_size_(block_size), search_(std::move(search)) {}

  // Encodes n contiguous values, which begin a block: whole blocks, of which the last may be short.
  // first: flat index of x[0] in the matrix, and its nibble in `packed`; where first is odd, the
  // high nibble of that byte is kept. scales: of these blocks, out.
  // Returns false for NaN or Inf; then nothing has a defined content.
  template <typename T>
  bool Encode(const T* x, std::int64_t n, std::int64_t first, std::uint8_t* packed, float* scales);

 private:
  template <typename T>
  bool FindScale(const T* x, std::int64_t n, std::int64_t first, float* scale);
  template <typename T>
  bool EncodeWhole(const T* x, std::int64_t blocks, std::int64_t first, std::uint8_t* packed,
                   float* scales);

  const EncodeTable* table_;
  std::int64_t block_size_;
  std::optional<ScaleSearch> search_;
};

// Values [begin, begin + count) of w (F32, BF16 or F16), row by row, as float32.
void GatherFloats(const ConstMatrixView& w, std::int64_t begin, std::int64_t count, float* out);

}  // namespace qlora

#endif  // QLORA_QUANT_BLOCK_ENCODER_H_
