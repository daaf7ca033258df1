// The bytes that reading a file may hold in memory: pages, dictionaries and the row that grows.
#ifndef QLORA_PARQUET_MEMORY_BUDGET_H_
#define QLORA_PARQUET_MEMORY_BUDGET_H_

#include <cstdint>

#include "base/check.h"

namespace qlora::parquet {

// Shared by all columns of a file: a few compressed bytes may claim a page of any size, and a file
// may have any number of columns.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t bytes) : bytes_(bytes), left_(bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Errors: InvalidInput when the bytes are not left.
  void Spend(std::int64_t bytes) {
    if (bytes > left_) {
      ThrowInvalidInput(
          "pages, dictionaries and one row take more than {} bytes of memory; this is not a data "
          "set, or its row groups or pages are too large: write the file again with smaller ones",
          bytes_);
    }
    left_ -= bytes;
  }
  void Return(std::int64_t bytes) { left_ += bytes; }

 private:
  std::int64_t bytes_;
  std::int64_t left_;
};

// The bytes of one buffer, returned when it is gone.
class MemoryShare {
 public:
  explicit MemoryShare(MemoryBudget& budget) : budget_(budget) {}
  ~MemoryShare() { budget_.Return(bytes_); }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  // Called before the buffer has the size `bytes`. Errors: as MemoryBudget::Spend.
  void Resize(std::int64_t bytes) {
    budget_.Spend(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  MemoryBudget& budget_;
  std::int64_t bytes_ = 0;
};

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_MEMORY_BUDGET_H_
