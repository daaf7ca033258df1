// The memory of the model: one range of addresses, of which each block takes what follows the last
// one that lives. The host has access to all of it or to nothing, by one call of the system.
//
//   | block | poisoned to the next multiple of 4096, and 4096 more | block | ...   no access   |
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "gpu_host/asan.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace gpu_host {
namespace {

constexpr std::size_t kRange = std::size_t{32} << 30;  // addresses, not memory
constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kPage = 4096;

std::size_t RoundUp(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

class DeviceMemory {
 public:
  DeviceMemory() {
    void* range =
        mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) std::abort();
    range_ = static_cast<std::byte*>(range);
    ShadowRange(range_, kRange);
  }

  std::byte* Allocate(std::size_t bytes) {
    const std::size_t room = RoomFor(bytes);
    if (room > kRange - used_) std::abort();
    std::byte* data = range_ + used_;
    used_ += room;
    Protect();
    const Access access;
    Unpoison(data, bytes);
    std::memset(data, 0xff, bytes);
    Poison(data + bytes, room - bytes);
    ShadowAllocated(data, bytes);
    blocks_[data] = bytes;
    allocated_ += bytes;
    return data;
  }

  void Skip(std::size_t bytes) { used_ += RoundUp(bytes, kPage); }

  void Free(void* p) {
    const auto block = blocks_.find(static_cast<std::byte*>(p));
    if (block == blocks_.end()) std::abort();
    const auto [data, bytes] = *block;
    blocks_.erase(block);
    allocated_ -= bytes;
    Poison(data, bytes);
    ShadowFreed(data, bytes);
    const std::size_t first = RoundUp(data - range_, kPage);
    const std::size_t last = (data - range_ + bytes) / kPage * kPage;
    if (first < last) madvise(range_ + first, last - first, MADV_DONTNEED);
    const auto newest = blocks_.rbegin();
    ShrinkTo(blocks_.empty() ? 0 : newest->first - range_ + RoomFor(newest->second));
  }

  bool Holds(const void* p, std::size_t bytes) const {
    const auto* data = static_cast<const std::byte*>(p);
    auto block = blocks_.upper_bound(const_cast<std::byte*>(data));
    if (block == blocks_.begin()) return false;
    --block;
    return data + bytes <= block->first + block->second;
  }

  std::size_t allocated() const { return allocated_; }

  void Open(int change) {
    const bool was_open = open_ > 0;
    open_ += change;
    if (was_open != (open_ > 0)) Protect();
  }

 private:
  static std::size_t RoomFor(std::size_t bytes) { return RoundUp(bytes, kAlignment) + kAlignment; }

  // Closes what follows the last block.
  void ShrinkTo(std::size_t used) {
    if (open_ > 0 && used < used_) mprotect(range_ + used, used_ - used, PROT_NONE);
    used_ = used;
  }
  void Protect() {
    const std::size_t pages = RoundUp(used_, kPage);
    if (mprotect(range_, pages, open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) std::abort();
  }

  std::byte* range_;
  std::size_t used_ = 0;
  std::size_t allocated_ = 0;
  int open_ = 0;
  std::map<std::byte*, std::size_t> blocks_;  // first byte -> bytes
};

DeviceMemory& Device() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace

std::byte* Allocate(std::size_t bytes) {
  return Device().Allocate(std::max<std::size_t>(1, bytes));
}
void Free(void* data) { Device().Free(data); }
void SkipAddresses(std::size_t bytes) { Device().Skip(bytes); }
bool IsDeviceMemory(const void* data, std::size_t bytes) { return Device().Holds(data, bytes); }
std::size_t AllocatedBytes() { return Device().allocated(); }
Access::Access() { Device().Open(1); }
Access::~Access() { Device().Open(-1); }

}  // namespace gpu_host
