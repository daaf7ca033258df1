// The values of a page, one by one, from any of the format's encodings.
#ifndef QLORA_PARQUET_VALUES_H_
#define QLORA_PARQUET_VALUES_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "parquet/schema.h"

namespace qlora::parquet {

// Numbers and booleans are in `bits`: an integer as 64 bits of its sign, a number as the bits of a
// double. Texts are views.
struct Value {
  std::uint64_t bits = 0;
  std::string_view text;
};

// The numbers of the format.
inline constexpr std::int32_t kPlain = 0;
inline constexpr std::int32_t kPlainDictionary = 2;
inline constexpr std::int32_t kRle = 3;
inline constexpr std::int32_t kDeltaBinaryPacked = 5;
inline constexpr std::int32_t kDeltaLengthByteArray = 6;
inline constexpr std::int32_t kDeltaByteArray = 7;
inline constexpr std::int32_t kRleDictionary = 8;
inline constexpr std::int32_t kByteStreamSplit = 9;

class ValueReader {
 public:
  virtual ~ValueReader() = default;
  // The text of a value is valid until the next call. May be called as often as the page has
  // values. Errors: InvalidInput for bytes that end too early or make no sense.
  virtual Value Next() = 0;
};

// Reads the `count` values that are encoded in `bytes`, which must outlive the reader, as must the
// dictionary (null: the column has none). Errors: InvalidInput for an encoding that is unknown or
// does not suit the type.
std::unique_ptr<ValueReader> MakeValueReader(std::int32_t encoding, const Node& leaf,
                                             std::string_view bytes, std::int64_t count,
                                             const std::vector<Value>* dictionary);

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_VALUES_H_
