#include "parquet/rle_bit_packed.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "parquet/varint.h"

namespace qlora::parquet {

// Bits are counted from the lowest bit of the first byte on, and the lowest bit of a value is
// first:
//
//   byte 0     byte 1
//   76543210   FEDCBA98      numbers of the bits
//   vvv.....   vvvvvvvv      the value of 11 bits that begins at bit 5
//
// A value may span 9 bytes: 8 from its first byte on, and one more for its highest bits.
std::uint64_t BitsAt(std::string_view bytes, std::uint64_t bit, int width) {
  const std::uint64_t begin = bit / 8;
  const int shift = static_cast<int>(bit % 8);
  if (width == 0 || begin >= bytes.size()) return 0;
  const std::string_view rest = bytes.substr(begin);
  std::uint64_t word = 0;
  std::memcpy(&word, rest.data(), std::min<std::size_t>(rest.size(), 8));
  std::uint64_t value = word >> shift;
  if (shift != 0 && shift + width > 64 && rest.size() > 8) {
    value |= std::uint64_t{static_cast<std::uint8_t>(rest[8])} << (64 - shift);
  }
  return width == 64 ? value : value & ((std::uint64_t{1} << width) - 1);
}

RleBitPackedReader::RleBitPackedReader(std::string_view bytes, int width)
    : bytes_(bytes), width_(width) {
  if (width < 0 || width > 32)
    ThrowInvalidInput("packed values have {} bits each, expected 0 to 32", width);
  if (width == 0) left_ = std::numeric_limits<std::int64_t>::max();
}

void RleBitPackedReader::StartRun() {
  const std::uint64_t header = TakeVarint(bytes_, position_);
  const std::uint64_t count = header >> 1;
  const std::uint64_t rest = bytes_.size() - position_;
  packed_ = (header & 1) != 0;
  if (count == 0 || count > std::uint64_t{std::numeric_limits<std::int32_t>::max()}) {
    ThrowInvalidInput("a run claims {} values, expected 1 to {}", count,
                      std::numeric_limits<std::int32_t>::max());
  }
  if (!packed_) {
    // The value of a run of copies takes whole bytes, whose highest bits must be 0.
    const std::uint64_t width_bytes = (width_ + 7) / 8;
    if (width_bytes > rest) ThrowInvalidInput("a run ends too early");
    value_ = static_cast<std::uint32_t>(
        BitsAt(bytes_.substr(position_, width_bytes), 0, 8 * static_cast<int>(width_bytes)));
    if (width_ < 32 && value_ >> width_ != 0) ThrowInvalidInput("a run's value is too large");
    position_ += width_bytes;
    left_ = static_cast<std::int64_t>(count);
    return;
  }
  // Some writers cut the padding of the last group off: of the values there are as many as fit.
  const std::uint64_t packed_bytes = std::min(count * width_, rest);
  group_ = bytes_.substr(position_, packed_bytes);
  position_ += packed_bytes;
  bit_ = 0;
  left_ = static_cast<std::int64_t>(std::min(8 * count, packed_bytes * 8 / width_));
  if (left_ == 0) ThrowInvalidInput("packed values end too early");
}

// Run by run, so that the time does not grow with the length of a run.
std::int64_t RleBitPackedReader::Count(std::int64_t count, std::uint32_t wanted) {
  std::int64_t found = 0;
  while (count > 0) {
    if (left_ == 0) StartRun();
    if (packed_) {
      found += Next() == wanted;
      --count;
    } else {
      const std::int64_t part = std::min(count, left_);
      if (value_ == wanted) found += part;
      left_ -= part;
      count -= part;
    }
  }
  return found;
}

}  // namespace qlora::parquet
