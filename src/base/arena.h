// Planned memory: one allocation, carved into named matrices.
#ifndef QLORA_BASE_ARENA_H_
#define QLORA_BASE_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/memory.h"
#include "qlora/tensor.h"

namespace qlora {

// Owns one allocation. Zero-filled at birth; on the host, pages cost memory when first
// touched.
class Arena {
 public:
  Arena() = default;
  // memory must outlive the arena.
  explicit Arena(std::size_t bytes, Memory& memory = HostMemory());
  // Host memory, backed by an unlinked temporary file in `directory`, so that the system can write
  // cold pages out and the arena may exceed free memory.
  Arena(std::size_t bytes, const std::string& directory);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // Gives back the resident pages of [begin, begin + count), whole pages only. Their values stay in
  // the file; a no-op without one.
  void Release(std::size_t begin, std::size_t count) const;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Memory* memory_ = nullptr;  // null: a mapping of a file
};

// Hands out consecutive 64-byte-aligned matrices. Without an arena it only counts, so the code that
// lays memory out is also the code that plans it:
//   auto layout = [&](Carver& c) { q = c.Matrix(DType::kBF16, n, d); ... };
//   Carver plan; layout(plan);  Arena arena(plan.bytes());  Carver carver(arena); layout(carver);
class Carver {
 public:
  Carver() = default;
  explicit Carver(Arena& arena) : base_(arena.data()), limit_(arena.bytes()) {}

  // Makes the next matrix begin at a multiple of `bytes`, itself a multiple of 64.
  void Align(std::size_t bytes) { used_ = (used_ + bytes - 1) / bytes * bytes; }
  // Returns a contiguous (rows, cols) matrix; while planning its data pointer is null.
  MatrixView Matrix(DType dtype, std::int64_t rows, std::int64_t cols);
  // Goes on behind what a copy of this carver handed out: parts that are laid out by copies share
  // their memory, and live one at a time.
  void GoBehind(const Carver& copy) { used_ = std::max(used_, copy.used_); }
  // Returns the bytes handed out so far, padding included.
  std::size_t bytes() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t limit_ = 0;
  std::size_t used_ = 0;
};

}  // namespace qlora

#endif  // QLORA_BASE_ARENA_H_
