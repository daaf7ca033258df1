// What reading data may take of memory. One number decides: the bytes that a run may use, or a
// gibibyte where it does not say.
#ifndef QLORA_RECORDS_READING_LIMITS_H_
#define QLORA_RECORDS_READING_LIMITS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "io/json.h"

namespace qlora {

// The most bytes that the reader of a file holds, unless less is allowed.
inline constexpr std::int64_t kMaxReadingMemory = std::int64_t{1} << 30;

struct ReadingLimits {
  std::int64_t memory = kMaxReadingMemory;

  // The bytes of one record, and of the records that are encoded at a time: a line, a row of CSV or
  // an element of a JSON array. A text takes up to 40 bytes for each of its own while it is
  // encoded.
  std::int64_t record_bytes() const { return memory / 64; }
  // The values of one record, each of which takes up to 128 bytes.
  std::int64_t record_values() const { return std::min(kMaxOrderedValues, memory / 256); }
  // The logarithm of the bytes to which a file of zstd may refer back, at most; 10 is the format's
  // least.
  int zstd_window_log() const {
    return std::max(10,
                    static_cast<int>(std::bit_width(static_cast<std::uint64_t>(memory / 4))) - 1);
  }
};

}  // namespace qlora

#endif  // QLORA_RECORDS_READING_LIMITS_H_
