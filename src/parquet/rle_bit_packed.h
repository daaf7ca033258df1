// Parquet's mixture of run lengths and packed bits, in which levels, dictionary indices and
// booleans are stored:
//
//   header h, a varint.  h even: h/2 copies of one value, which takes ceil(width/8) bytes.
//                        h odd:  (h-1)/2 groups of 8 values of `width` bits each, lowest bit first.
#ifndef QLORA_PARQUET_RLE_BIT_PACKED_H_
#define QLORA_PARQUET_RLE_BIT_PACKED_H_

#include <cstdint>
#include <string_view>

namespace qlora::parquet {

// The value of `width` bits (at most 64) that begins at `bit`. Bits beyond the end are 0.
std::uint64_t BitsAt(std::string_view bytes, std::uint64_t bit, int width);

// Reads values one by one, so that a run of any length takes no memory. A width of 0 needs no
// bytes: all values are 0. The bytes must outlive the reader.
class RleBitPackedReader {
 public:
  RleBitPackedReader() = default;
  // Errors: InvalidInput for a width above 32.
  RleBitPackedReader(std::string_view bytes, int width);

  // Errors: InvalidInput for bytes that end too early and for a run of no values.
  std::uint32_t Next() {
    if (left_ == 0) StartRun();
    --left_;
    if (!packed_) return value_;
    const std::uint64_t bit = bit_;
    bit_ += width_;
    return static_cast<std::uint32_t>(BitsAt(group_, bit, width_));
  }
  // Reads `count` values and returns how many of them equal `wanted`.
  std::int64_t Count(std::int64_t count, std::uint32_t wanted);

 private:
  void StartRun();

  std::string_view bytes_;
  std::size_t position_ = 0;
  int width_ = 0;
  std::int64_t left_ = 0;  // values of the run
  bool packed_ = false;
  std::uint32_t value_ = 0;  // of a run of copies
  std::string_view group_;   // of packed bits
  std::uint64_t bit_ = 0;
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_RLE_BIT_PACKED_H_
