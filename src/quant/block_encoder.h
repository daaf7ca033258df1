// Runs of blocks to codes and scales: the scale search or the absmax, then the vector kernels, or
// the scalar definition where the kernels do not apply.
#ifndef QLORA_QUANT_BLOCK_ENCODER_H_
#define QLORA_QUANT_BLOCK_ENCODER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "qlora/context.h"
#include "quant/encode_table.h"
#include "quant/scale_search.h"

namespace qlora {

// Values per task: enough to hide the hand-out of tasks, small enough to share work evenly.
inline constexpr std::int64_t kEncodedPerTask = 1 << 18;

// One per thread. A matrix without search has its absmax as scale.
class BlockEncoder {
 public:
  BlockEncoder(const EncodeTable& table, std::int64_t block_size, std::optional<ScaleSearch> search)
      : table_(&table), block_size_(block_size), search_(std::move(search)) {}

  // Encodes n contiguous values, which begin a block: whole blocks, of which the last may be short.
  // first: flat index of x[0] in the matrix, and its nibble in `packed`; where first is odd, the
  // high nibble of that byte is kept. scales: of these blocks, out.
  // Returns the number of blocks, or of the first block with NaN or Inf.
  template <typename T>
  std::int64_t Encode(const T* x, std::int64_t n, std::int64_t first, std::uint8_t* packed,
                      float* scales);

 private:
  template <typename T>
  bool FindScale(const T* x, std::int64_t n, std::int64_t first, float* scale);
  template <typename T>
  std::int64_t EncodeWhole(const T* x, std::int64_t blocks, std::int64_t first,
                           std::uint8_t* packed, float* scales);

  const EncodeTable* table_;
  std::int64_t block_size_;
  std::optional<ScaleSearch> search_;
};

// The first of the blocks that tasks report, whatever their order.
class FirstBlock {
 public:
  explicit FirstBlock(std::int64_t blocks) : none_(blocks), first_(blocks) {}
  void Report(std::int64_t block);
  // Nothing if no block was reported.
  std::optional<std::int64_t> Get() const;

 private:
  std::int64_t none_;
  std::atomic<std::int64_t> first_;
};

// "quantize: tensor 'name'", the beginning of an error message.
std::string QuantizeSubject(const std::string& name);

// Values [begin, begin + count) of w (F32, BF16 or F16), row by row, as float32.
void GatherFloats(const ConstMatrixView& w, std::int64_t begin, std::int64_t count, float* out);

// Errors (InvalidInput): w is not F32, BF16 or F16.
void CheckDType(const ConstMatrixView& w, const std::string& name);
// Errors (InvalidInput): NaN or Inf in w, with the index of the first.
void CheckFinite(Context& context, const ConstMatrixView& w, const std::string& name);
// Errors (InvalidInput): storage of less than `bytes`, or not aligned to 64.
void CheckStorage(std::span<const std::byte> storage, std::size_t bytes, const std::string& name);

}  // namespace qlora

#endif  // QLORA_QUANT_BLOCK_ENCODER_H_
