// A memory of its own for tests: pages that the host cannot read or write except while an op or a
// transfer runs, like those of a device. A touch outside of them ends the test with a segmentation
// fault.
#ifndef QLORA_TESTS_BACKEND_GUARDED_MEMORY_H_
#define QLORA_TESTS_BACKEND_GUARDED_MEMORY_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/memory.h"

namespace qlora {

class GuardedMemory final : public Memory {
 public:
  // The pages may be touched while one of these lives. They nest, in one thread or in several.
  class Access {
   public:
    explicit Access(GuardedMemory& memory) : memory_(memory) { memory_.Open(1); }
    ~Access() { memory_.Open(-1); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    GuardedMemory& memory_;
  };

  // All blocks are in one range of addresses, which one call opens and closes. Addresses are not
  // used twice, so that a freed block is never mistaken for a later one. Large pages, which are
  // few, make the calls ten times faster.
  GuardedMemory() {
    void* data = mmap(nullptr, kRange + kLargePage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) ThrowRuntime("guarded memory: cannot reserve {} bytes", kRange);
    mapped_ = data;
    range_ = static_cast<std::byte*>(data);
    range_ += kLargePage - reinterpret_cast<std::uintptr_t>(data) % kLargePage;
    madvise(range_, kRange, MADV_HUGEPAGE);
  }
  ~GuardedMemory() override { munmap(mapped_, kRange + kLargePage); }

  std::byte* Allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (Pages(bytes) > kRange - used_) ThrowRuntime("guarded memory: no room for {} bytes", bytes);
    std::byte* data = range_ + used_;
    used_ += Pages(bytes);
    Protect();
    blocks_[data] = bytes;
    return data;
  }
  void Free(std::byte* data, std::size_t) noexcept override {
    const std::lock_guard lock(mutex_);
    blocks_.erase(data);
  }
  std::size_t Available() const override { return HostMemory().Available(); }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    CheckOutside("the source of an upload", host, bytes);
    CheckInside("the target of an upload", data, bytes);
    const Access access(*this);
    if (bytes > 0) std::memcpy(data, host, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    CheckInside("the source of a download", data, bytes);
    CheckOutside("the target of a download", host, bytes);
    const Access access(*this);
    if (bytes > 0) std::memcpy(host, data, bytes);
  }
  void Zero(void* data, std::size_t bytes) override {
    CheckInside("what is set to zero", data, bytes);
    const Access access(*this);
    if (bytes > 0) std::memset(data, 0, bytes);
  }

  // Errors: Runtime when a byte of [data, data + bytes) is not in this memory (inside), or is.
  void CheckInside(const char* what, const void* data, std::size_t bytes) const {
    if (bytes > 0 && !Holds(data, bytes)) {
      ThrowRuntime("guarded memory: {} ({} bytes) is not in the memory of the backend", what,
                   bytes);
    }
  }
  void CheckOutside(const char* what, const void* data, std::size_t bytes) const {
    if (bytes > 0 &&
        (Holds(data, 1) || Holds(static_cast<const std::byte*>(data) + bytes - 1, 1))) {
      ThrowRuntime("guarded memory: {} ({} bytes) is not in host memory", what, bytes);
    }
  }

 private:
  static std::size_t Pages(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

  void Protect() {
    const std::size_t bytes = (used_ + kLargePage - 1) / kLargePage * kLargePage;
    mprotect(range_, bytes, open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

  void Open(int change) {
    const std::lock_guard lock(mutex_);
    const bool was_open = open_ > 0;
    open_ += change;
    if (was_open != (open_ > 0)) Protect();
  }

  bool Holds(const void* data, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    auto* begin = static_cast<std::byte*>(const_cast<void*>(data));
    auto block = blocks_.upper_bound(begin);
    if (block == blocks_.begin()) return false;
    --block;
    return begin + bytes <= block->first + block->second;
  }

  static constexpr std::size_t kRange = std::size_t{16} << 30;
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;

  mutable std::mutex mutex_;
  int open_ = 0;
  void* mapped_;
  std::byte* range_;                          // within mapped_, at a large page
  std::size_t used_ = 0;                      // of the range
  std::map<std::byte*, std::size_t> blocks_;  // first byte -> bytes
};

}  // namespace qlora

#endif  // QLORA_TESTS_BACKEND_GUARDED_MEMORY_H_
