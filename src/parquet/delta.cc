#include "parquet/delta.h"

#include "base/check.h"
#include "parquet/rle_bit_packed.h"
#include "parquet/varint.h"

namespace qlora::parquet {
namespace {

// A header, then blocks. A varint z is zigzag-coded, for negative numbers:
//
//   header   values per block | miniblocks per block | values | first value (z)
//   block    smallest difference (z) | a byte per miniblock: its width in bits | miniblock ...
//
//   value[i + 1] = value[i] + smallest + packed[i]    modulo 2^64
//
// Every miniblock has the same number of packed values, a multiple of 32, so that it ends at a
// byte.
constexpr std::uint64_t kMaxBlock = 1 << 16;  // values

}  // namespace

DeltaReader::DeltaReader(std::string_view bytes, std::int64_t count) : bytes_(bytes) {
  const std::uint64_t block = TakeVarint(bytes_, position_);
  const std::uint64_t miniblocks = TakeVarint(bytes_, position_);
  const std::uint64_t total = TakeVarint(bytes_, position_);
  value_ = static_cast<std::uint64_t>(DecodeZigzag(TakeVarint(bytes_, position_)));
  if (block == 0 || block > kMaxBlock || miniblocks == 0 || block % miniblocks != 0 ||
      block / miniblocks % 32 != 0) {
    ThrowInvalidInput("differences in {} miniblocks of a block of {} values", miniblocks, block);
  }
  if (total != std::uint64_t(count)) {
    ThrowInvalidInput("a page has {} values, and its differences are of {}", count, total);
  }
  count_ = count;
  miniblocks_ = static_cast<std::int64_t>(miniblocks);
  miniblock_size_ = static_cast<std::int64_t>(block / miniblocks);
  miniblock_ = miniblocks_;
}

std::int64_t DeltaReader::Next() {
  const auto value = static_cast<std::int64_t>(value_);
  if (++done_ < count_) {
    if (left_ == 0) StartMiniblock();
    const std::int64_t index = miniblock_size_ - left_--;
    value_ += smallest_ + BitsAt(packed_, std::uint64_t(index) * width_, width_);
  }
  return value;
}

void DeltaReader::StartBlock() {
  smallest_ = static_cast<std::uint64_t>(DecodeZigzag(TakeVarint(bytes_, position_)));
  if (std::uint64_t(miniblocks_) > bytes_.size() - position_) {
    ThrowInvalidInput("a block of differences ends too early");
  }
  widths_ = bytes_.substr(position_, miniblocks_);
  position_ += miniblocks_;
  miniblock_ = 0;
}

// A miniblock that has begun is whole, even if its last values are not needed; those behind the
// last value have a width and no bytes.
void DeltaReader::StartMiniblock() {
  if (miniblock_ == miniblocks_) StartBlock();
  width_ = static_cast<std::uint8_t>(widths_[miniblock_++]);
  const std::uint64_t size = std::uint64_t(width_) * miniblock_size_ / 8;
  if (width_ > 64 || size > bytes_.size() - position_) {
    ThrowInvalidInput("a miniblock of differences of {} bits ends too early", width_);
  }
  packed_ = bytes_.substr(position_, size);
  position_ += size;
  left_ = miniblock_size_;
}

// Only the miniblocks themselves tell where the last one ends.
std::string_view DeltaReader::Rest() const {
  DeltaReader copy = *this;
  while (copy.done_ < copy.count_) copy.Next();
  return bytes_.substr(copy.position_);
}

}  // namespace qlora::parquet
