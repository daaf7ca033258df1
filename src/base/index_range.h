// Consecutive indices.
#ifndef QLORA_BASE_INDEX_RANGE_H_
#define QLORA_BASE_INDEX_RANGE_H_

#include <cstdint>

namespace qlora {

struct IndexRange {  // [begin, end)
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool Has(std::int64_t index) const { return begin <= index && index < end; }
  bool operator==(const IndexRange&) const = default;
};

}  // namespace qlora

#endif  // QLORA_BASE_INDEX_RANGE_H_
