#include "gpu_host/host_runtime.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace gpu_host {
namespace {

using qlora::ThrowRuntime;

void CheckDevice(const char* what, const void* data, std::size_t bytes) {
  if (!IsDeviceMemory(data, bytes)) {
    ThrowRuntime("gpu model: {} ({} bytes) is not in device memory", what, bytes);
  }
}
void CheckHost(const char* what, const void* data, std::size_t bytes) {
  if (IsDeviceMemory(data, 1) || IsDeviceMemory(static_cast<const char*>(data) + bytes - 1, 1)) {
    ThrowRuntime("gpu model: {} ({} bytes) is not in host memory", what, bytes);
  }
}

class HostRuntime final : public qlora::cuda::Runtime {
 public:
  ~HostRuntime() override { RunQueue(); }

  qlora::cuda::Stream stream() const override { return nullptr; }

  std::byte* Allocate(std::size_t bytes) override { return gpu_host::Allocate(bytes); }
  void Free(std::byte* data) noexcept override {
    RunQueue();
    gpu_host::Free(data);
  }
  std::size_t Available() const override { return qlora::HostMemory().Available(); }

  // The bytes are taken now and arrive later, as with memory that is not pinned.
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return;
    CheckDevice("the target of a copy", device, bytes);
    CheckHost("the source of a copy", host, bytes);
    const auto* begin = static_cast<const std::byte*>(host);
    Enqueue([device, values = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(device, values.data(), values.size());
      ShadowWrittenByHost(device, values.size());
    });
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    if (bytes > 0) {
      CheckDevice("the source of a copy", device, bytes);
      CheckHost("the target of a copy", host, bytes);
    }
    Synchronize();
    const Access access;
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void Clear(void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    CheckDevice("what is set to 0", device, bytes);
    Enqueue([device, bytes] {
      std::memset(device, 0, bytes);
      ShadowWrittenByHost(device, bytes);
    });
  }
  void Synchronize() override {
    RunQueue();
    const std::string finding = TakeFinding();
    if (!finding.empty()) ThrowRuntime("gpu model: {}", finding);
  }
};

}  // namespace

std::unique_ptr<qlora::cuda::Runtime> MakeHostRuntime() { return std::make_unique<HostRuntime>(); }

}  // namespace gpu_host
