#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/system.h"

namespace qlora {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Host final : public Memory {
 public:
  std::byte* Allocate(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cannot map {} bytes of memory: {}", bytes, std::strerror(errno)));
    }
    auto* const mapped = static_cast<std::byte*>(data);
    if (bytes >= kHugePage) PreferLargePages(mapped, bytes);
    return mapped;
  }
  void Free(std::byte* data, std::size_t bytes) noexcept override { munmap(data, bytes); }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(data, host, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, data, bytes);
  }
  void Zero(void* data, std::size_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }
  std::size_t Available() const override { return AvailableBytes(); }
  std::size_t Held() const override { return ResidentBytes(); }
  std::size_t Total() const override { return TotalBytes(); }
};

}  // namespace

Memory& HostMemory() {
  static Host host;
  return host;
}

HostBytes::HostBytes(Memory& memory, const void* data, std::size_t bytes)
    : data_(static_cast<const std::byte*>(data)) {
  if (IsHost(memory) || bytes == 0) return;
  copy_.resize(bytes);
  memory.Download(data, copy_.data(), bytes);
  data_ = copy_.data();
}

}  // namespace qlora
