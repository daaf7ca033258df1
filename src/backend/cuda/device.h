// A GPU as its backends share it: runtime, matrix products and memory.
#ifndef QLORA_BACKEND_CUDA_DEVICE_H_
#define QLORA_BACKEND_CUDA_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "backend/cuda/attention.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/planned_backend.h"
#include "backend/cuda/runtime.h"
#include "base/memory.h"

namespace qlora::cuda {

// Host memory that is page-locked, from and to which the GPU copies by itself; pageable where the
// system does not lock so much.
class StagingMemory final : public Memory {
 public:
  explicit StagingMemory(Runtime& runtime) : runtime_(runtime) {}

  std::byte* Allocate(std::size_t bytes) override {
    if (std::byte* const locked = runtime_.AllocateLocked(bytes)) return locked;
    std::byte* const data = HostMemory().Allocate(bytes);
    const std::lock_guard lock(mutex_);
    pageable_[data] = bytes;
    return data;
  }
  void Free(std::byte* data, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (pageable_.erase(data) == 0) return runtime_.FreeLocked(data);
    }
    HostMemory().Free(data, bytes);
  }
  void Upload(const void* host, void* data, std::size_t bytes) override {
    HostMemory().Upload(host, data, bytes);
  }
  void Download(const void* data, void* host, std::size_t bytes) override {
    HostMemory().Download(data, host, bytes);
  }
  void Zero(void* data, std::size_t bytes) override { HostMemory().Zero(data, bytes); }
  std::size_t Available() const override { return HostMemory().Available(); }

  std::size_t Unlocked() const override {
    const std::lock_guard lock(mutex_);
    std::size_t sum = 0;
    for (const auto& [data, bytes] : pageable_) sum += bytes;
    return sum;
  }
  // True for memory that was allocated here and is not page-locked.
  bool IsPageable(const void* data) const {
    const std::lock_guard lock(mutex_);
    auto block = pageable_.upper_bound(static_cast<const std::byte*>(data));
    if (block == pageable_.begin()) return false;
    --block;
    return data < block->first + block->second;
  }

 private:
  Runtime& runtime_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> pageable_;  // first byte -> bytes
};

// The operands of ops. Transfers that are not queued are in the order of ops.
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
    Forget(awaited_);  // the ops that have run were behind them
  }
  void Zero(void* data, std::size_t bytes) override { runtime_.Clear(data, bytes); }

  void Synchronize() override { runtime_.WaitFor(runtime_.Record(runtime_.stream())); }
  void* queue() const override { return runtime_.stream(); }
  Memory& staging() override { return staging_; }
  void QueueUpload(const void* host, void* data, std::size_t bytes) override {
    if (staging_.IsPageable(host)) {
      OpsWaitFor(data, bytes);  // queued copies of other memory of the host, which is locked
      return Upload(host, data, bytes);
    }
    const std::lock_guard lock(mutex_);
    // Those that read `data`, or wrote it, among others.
    runtime_.OrderBehind(runtime_.copies(), runtime_.Record(runtime_.stream()));
    runtime_.QueueCopyIn(data, host, bytes);
    AddTransfer(host, data, bytes);
  }
  void QueueDownload(const void* data, void* host, std::size_t bytes) override {
    if (staging_.IsPageable(host)) {
      OpsWaitFor(data, bytes);
      return Download(data, host, bytes);
    }
    const std::lock_guard lock(mutex_);
    runtime_.OrderBehind(runtime_.copies(), runtime_.Record(runtime_.stream()));
    runtime_.QueueCopyOut(host, data, bytes);
    AddTransfer(host, data, bytes);
  }
  void OpsWaitFor(const void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t end = EndOf(&Transfer::data, data, bytes);
    if (end <= awaited_) return;
    runtime_.OrderBehind(runtime_.stream(), transfers_[end - 1].end);
    awaited_ = end;
  }
  void WaitFor(const void* host, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t end = EndOf(&Transfer::host, host, bytes);
    if (end == 0) return;
    runtime_.WaitFor(transfers_[end - 1].end);
    Forget(end);
  }
  std::size_t Available() const override { return runtime_.Available(); }
  std::size_t Held() const override { return kHeldBytes; }

 private:
  using Bytes = std::span<const std::byte>;
  struct Transfer {
    Bytes host, data;
    Event end;
  };
  static Bytes BytesAt(const void* data, std::size_t bytes) {
    return {static_cast<const std::byte*>(data), bytes};
  }
  void AddTransfer(const void* host, const void* data, std::size_t bytes) {
    transfers_.push_back(
        {BytesAt(host, bytes), BytesAt(data, bytes), runtime_.Record(runtime_.copies())});
  }
  // The number of transfers up to the last one whose `side` overlaps these bytes; 0: no transfer
  // does.
  std::size_t EndOf(Bytes Transfer::*side, const void* data, std::size_t bytes) const {
    const Bytes other = BytesAt(data, bytes);
    std::size_t end = transfers_.size();
    for (; end > 0; --end) {
      const Bytes mine = transfers_[end - 1].*side;
      if (mine.data() < other.data() + other.size() && other.data() < mine.data() + mine.size()) {
        break;
      }
    }
    return end;
  }
  // Drops the first `count` transfers, which have run.
  void Forget(std::size_t count) {
    transfers_.erase(transfers_.begin(), transfers_.begin() + static_cast<std::ptrdiff_t>(count));
    awaited_ -= std::min(awaited_, count);
  }

  Runtime& runtime_;
  StagingMemory staging_;
  // Held while a transfer is queued and while the host waits. The backends of a device may run on
  // several threads.
  std::mutex mutex_;
  // Queued transfers, in the order in which they run, that nobody knows to have run.
  std::deque<Transfer> transfers_;
  std::size_t awaited_ = 0;  // the first ones, which ops that were given since run after
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
  AttentionLibrary* attention() { return attention_.get(); }  // null: there is no library
  DeviceMemory& memory() { return memory_; }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<AttentionLibrary> attention_;
  DeviceMemory memory_;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_H_
