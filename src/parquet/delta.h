// DELTA_BINARY_PACKED: integers as differences, in blocks with a smallest difference and miniblocks
// of packed bits.
#ifndef QLORA_PARQUET_DELTA_H_
#define QLORA_PARQUET_DELTA_H_

#include <cstdint>
#include <string_view>

namespace qlora::parquet {

// Copyable: a copy continues at the same value.
class DeltaReader {
 public:
  // Reads the header. Errors: InvalidInput when the sizes are impossible or there are not exactly
  // `count` values.
  DeltaReader(std::string_view bytes, std::int64_t count);

  // Wraps in 64 bits. May be called `count` times. Errors: InvalidInput for bytes that end too
  // early.
  std::int64_t Next();
  // The bytes behind the values, which a copy reads for that.
  std::string_view Rest() const;

 private:
  void StartBlock();
  void StartMiniblock();

  std::string_view bytes_;
  std::size_t position_ = 0;
  std::int64_t count_ = 0;           // values in all
  std::int64_t done_ = 0;            // values that were read
  std::int64_t miniblocks_ = 0;      // of a block
  std::int64_t miniblock_size_ = 0;  // values of a miniblock
  std::uint64_t value_ = 0;          // the next value
  std::uint64_t smallest_ = 0;       // difference of the block
  std::string_view widths_;          // (miniblocks_) of the block
  std::int64_t miniblock_ = 0;       // index in the block of the miniblock after this one
  std::string_view packed_;          // of the miniblock
  std::int64_t left_ = 0;            // differences of the miniblock that were not read
  int width_ = 0;
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_DELTA_H_
