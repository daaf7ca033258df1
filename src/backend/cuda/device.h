// A GPU as its backends share it: runtime, matrix products and memory.
#ifndef QLORA_BACKEND_CUDA_DEVICE_H_
#define QLORA_BACKEND_CUDA_DEVICE_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/planned_backend.h"
#include "backend/cuda/runtime.h"
#include "base/memory.h"

namespace qlora::cuda {

// Page-locked host memory, from and to which the GPU copies by itself.
class LockedMemory final : public Memory {
 public:
  explicit LockedMemory(Runtime& runtime) : runtime_(runtime) {}

  std::byte* Allocate(std::size_t bytes) override { return runtime_.AllocateLocked(bytes); }
  void Free(std::byte* data, std::size_t) noexcept override { runtime_.FreeLocked(data); }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    HostMemory().Upload(host, data, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    HostMemory().Download(data, host, bytes);
  }
  void Zero(void* data, std::size_t bytes) override { HostMemory().Zero(data, bytes); }
  std::size_t Available() const override { return HostMemory().Available(); }

 private:
  Runtime& runtime_;
};

// The operands of ops. Transfers are queued behind the ops that were given before.
class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(Runtime& runtime) : runtime_(runtime), staging_(runtime) {}

  std::byte* Allocate(std::size_t bytes) override {
    std::byte* data = runtime_.Allocate(bytes);
    runtime_.Clear(data, bytes);
    return data;
  }
  void Free(std::byte* data, std::size_t) noexcept override { runtime_.Free(data); }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    runtime_.CopyIn(data, host, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    runtime_.CopyOut(host, data, bytes);
    pending_.clear();
  }
  void Zero(void* data, std::size_t bytes) override { runtime_.Clear(data, bytes); }
  Memory& staging() override { return staging_; }
  void QueueUpload(const void* host, void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    runtime_.QueueCopyIn(data, host, bytes);
    pending_.emplace_back(static_cast<const std::byte*>(host), bytes);
  }
  void QueueDownload(const void* data, void* host, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    runtime_.QueueCopyOut(host, data, bytes);
    pending_.emplace_back(static_cast<const std::byte*>(host), bytes);
  }
  void WaitFor(const void* host, std::size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(host);
    const auto overlaps = [&](std::span<const std::byte> other) {
      return begin < other.data() + other.size() && other.data() < begin + bytes;
    };
    const std::lock_guard lock(mutex_);
    if (std::ranges::none_of(pending_, overlaps)) return;
    runtime_.Synchronize();
    pending_.clear();
  }
  std::size_t Available() const override { return runtime_.Available(); }
  std::size_t Held() const override { return kHeldBytes; }

 private:
  Runtime& runtime_;
  LockedMemory staging_;
  // Held while a transfer is queued and while the host waits: whoever clears the list has waited
  // for everything in it. The backends of a device may run on several threads.
  std::mutex mutex_;
  // Host bytes of the transfers that were queued since the host last waited for the stream.
  std::vector<std::span<const std::byte>> pending_;
};

class Device {
 public:
  Device(std::unique_ptr<Runtime> runtime, std::unique_ptr<Blas> blas,
         std::unique_ptr<AttentionLibrary> attention = nullptr)
      : runtime_(std::move(runtime)),
        blas_(std::move(blas)),
        attention_(std::move(attention)),
        memory_(*runtime_) {}

  Runtime& runtime() { return *runtime_; }
  Blas& blas() { return *blas_; }
  AttentionLibrary* attention() { return attention_.get(); }  // null: there is none
  DeviceMemory& memory() { return memory_; }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<AttentionLibrary> attention_;
  DeviceMemory memory_;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_H_
