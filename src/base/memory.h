// The memory of one device: the host, or that of a backend.
#ifndef QLORA_BASE_MEMORY_H_
#define QLORA_BASE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "qlora/tensor.h"

namespace qlora {

class Memory {
 public:
  virtual ~Memory() = default;

  // Allocates zeroed bytes, aligned to 64 bytes or more. Errors: OutOfMemory.
  virtual std::byte* Allocate(std::size_t bytes) = 0;
  virtual void Free(std::byte* data, std::size_t bytes) noexcept = 0;

  // Transfers between the host and this memory. Upload, Zero and Free take effect after all ops
  // that the backends of this memory were given before, and before all later ones. Upload returns
  // when `host` may be reused, Download when all ops before it have run and `host` is filled.
  virtual void Upload(const void* host, void* data, std::size_t bytes) = 0;
  virtual void Download(const void* data, void* host, std::size_t bytes) = 0;
  virtual void Zero(void* data, std::size_t bytes) = 0;

  // Returns the bytes that can still be allocated.
  virtual std::size_t Available() const = 0;
  // Returns the bytes that this process holds beyond the allocations made here: program and data.
  virtual std::size_t Held() const { return 0; }
  // Returns the size of the memory, or of the part that this process may use. Available() and
  // Held() may be more in sum: pages of files count as both.
  virtual std::size_t Total() const { return std::numeric_limits<std::size_t>::max(); }
};

// Returns the memory of this process; it has no state.
Memory& HostMemory();
inline bool IsHost(const Memory& memory) { return &memory == &HostMemory(); }

// Bytes of a memory as the host reads them: in place in HostMemory(), otherwise a copy.
class HostBytes {
 public:
  HostBytes(Memory& memory, const void* data, std::size_t bytes);
  HostBytes(HostBytes&&) noexcept = default;
  HostBytes& operator=(HostBytes&&) noexcept = default;

  const std::byte* data() const { return data_; }

 private:
  std::vector<std::byte> copy_;
  const std::byte* data_;
};

// Uploads to a contiguous view of as many bytes as `host` has.
template <typename T>
void Upload(Memory& memory, std::span<const T> host, const MatrixView& m) {
  memory.Upload(host.data(), m.data, host.size_bytes());
}

// Returns the elements of a contiguous view.
template <typename T>
std::vector<T> Download(Memory& memory, const ConstMatrixView& m) {
  std::vector<T> host(m.rows * m.cols);
  memory.Download(m.data, host.data(), host.size() * sizeof(T));
  return host;
}

// Sets all bytes of a contiguous view to zero, which is 0 in every DType.
inline void Zero(Memory& memory, const MatrixView& m) {
  memory.Zero(m.data, BytesOf(m.dtype, m.rows * m.cols));
}

}  // namespace qlora

#endif  // QLORA_BASE_MEMORY_H_
