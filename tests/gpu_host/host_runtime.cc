#include "gpu_host/host_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
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

// Page-locked memory of the model. What belongs to a queued copy is closed until the copy has run,
// by whole pages, so that a host that reads or writes it too early ends the program.
class LockedPages {
 public:
  std::byte* Allocate(std::size_t bytes) {
    std::byte* data = qlora::HostMemory().Allocate(bytes);
    blocks_[data] = bytes;
    return data;
  }
  void Free(std::byte* data) {
    const auto block = blocks_.find(data);
    if (block == blocks_.end()) std::abort();
    // Those that a finding has dropped.
    std::erase_if(pending_, [&](const auto& copy) {
      return copy.first >= data && copy.first < data + block->second;
    });
    qlora::HostMemory().Free(data, block->second);
    blocks_.erase(block);
  }
  bool Holds(const void* data, std::size_t bytes) const {
    const auto* begin = static_cast<const std::byte*>(data);
    auto block = blocks_.upper_bound(const_cast<std::byte*>(begin));
    if (block == blocks_.begin()) return false;
    --block;
    return begin + bytes <= block->first + block->second;
  }
  void Close(const void* data, std::size_t bytes) {
    pending_.emplace_back(data, bytes);
    Protect(data, bytes, PROT_NONE);
  }
  // Runs the first copy of these bytes that was closed. Pages of others are closed again.
  void RunCopy(const void* data, std::size_t bytes, const std::function<void()>& copy) {
    pending_.erase(std::ranges::find(pending_, std::pair(data, bytes)));
    Protect(data, bytes, PROT_READ | PROT_WRITE);
    copy();
    for (const auto& [other, size] : pending_) Protect(other, size, PROT_NONE);
  }

 private:
  static void Protect(const void* data, std::size_t bytes, int access) {
    constexpr std::uintptr_t kPage = 4096;
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = begin / kPage * kPage;
    if (mprotect(reinterpret_cast<void*>(first), begin + bytes - first, access) != 0) std::abort();
  }

  std::map<std::byte*, std::size_t> blocks_;  // first byte -> bytes
  std::vector<std::pair<const void*, std::size_t>> pending_;
};

class HostRuntime final : public qlora::cuda::Runtime {
 public:
  ~HostRuntime() override { RunQueue(); }

  qlora::cuda::Stream stream() const override { return StreamOf(Queue::kOps); }
  qlora::cuda::Stream copies() const override { return StreamOf(Queue::kCopies); }
  // Few, so that the blocks of small tests have more than one piece of work.
  int Multiprocessors() const override { return 2; }
  qlora::cuda::Event Record(qlora::cuda::Stream stream) override {
    return gpu_host::Record(QueueOf(stream));
  }
  void OrderBehind(qlora::cuda::Stream stream, const qlora::cuda::Event& event) override {
    gpu_host::OrderBehind(QueueOf(stream), std::static_pointer_cast<const Event>(event));
  }
  void WaitFor(const qlora::cuda::Event& event) override {
    RunUntil(*std::static_pointer_cast<const Event>(event));
    ThrowFinding();
  }

  qlora::cuda::Graph Capture(const std::function<void(qlora::cuda::Stream)>& queue,
                             qlora::cuda::Graph last) override {
    // What has been launched goes on; who launches it again launches nothing.
    if (last != nullptr)
      std::static_pointer_cast<Captured>(std::const_pointer_cast<void>(last))->clear();
    captures_ = true;
    try {
      queue(StreamOf(Queue::kCaptured));
    } catch (...) {
      captures_ = false;
      TakeCaptured();
      throw;
    }
    captures_ = false;
    return std::make_shared<Captured>(TakeCaptured());
  }
  void Launch(const qlora::cuda::Graph& graph) override {
    for (const auto& work : *std::static_pointer_cast<const Captured>(graph)) Enqueue(work);
  }

  std::byte* Allocate(std::size_t bytes) override {
    RefuseInCapture("an allocation");
    return gpu_host::Allocate(bytes);
  }
  void Free(std::byte* data) noexcept override {
    RunQueue();
    gpu_host::Free(data);
  }
  std::size_t Available() const override { return qlora::HostMemory().Available(); }

  std::byte* AllocateLocked(std::size_t bytes) override {
    return bytes <= options.locked_limit ? locked_.Allocate(bytes) : nullptr;
  }
  void FreeLocked(std::byte* data) noexcept override {
    RunQueue();
    locked_.Free(data);
  }

  // The bytes are taken now and arrive later, as with memory that is not page-locked.
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    RefuseInCapture("a copy");
    if (bytes == 0) return;
    CheckDevice("the target of a copy", device, bytes);
    CheckHost("the source of a copy", host, bytes);
    if (locked_.Holds(host, 1)) {
      ThrowRuntime("gpu model: a copy from page-locked memory would not have taken the bytes yet");
    }
    const auto* begin = static_cast<const std::byte*>(host);
    Enqueue([device, values = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(device, values.data(), values.size());
      ShadowWrittenByHost(device, values.size());
    });
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    RefuseInCapture("a copy");
    if (bytes > 0) {
      CheckDevice("the source of a copy", device, bytes);
      CheckHost("the target of a copy", host, bytes);
    }
    RunQueue(Queue::kOps);
    ThrowFinding();
    const Access access;
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void QueueCopyIn(void* device, const void* locked, std::size_t bytes) override {
    if (bytes == 0) return;
    CheckDevice("the target of a queued copy", device, bytes);
    CheckLocked("the source of a queued copy", locked, bytes);
    QueueCopy(locked, bytes, [=] {
      std::memcpy(device, locked, bytes);
      ShadowWrittenByHost(device, bytes);
    });
  }
  void QueueCopyOut(void* locked, const void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    CheckDevice("the source of a queued copy", device, bytes);
    CheckLocked("the target of a queued copy", locked, bytes);
    QueueCopy(locked, bytes, [=] { std::memcpy(locked, device, bytes); });
  }
  void Clear(void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    RefuseInCapture("a fill");
    CheckDevice("what is set to 0", device, bytes);
    Enqueue([device, bytes] {
      std::memset(device, 0, bytes);
      ShadowWrittenByHost(device, bytes);
    });
  }
  void Synchronize() override {
    RunQueue();
    ThrowFinding();
  }

 private:
  using Captured = std::vector<std::function<void()>>;
  // What a graph would not hold.
  void RefuseInCapture(const char* what) const {
    if (captures_) ThrowRuntime("gpu model: {} while ops are captured", what);
  }
  static void ThrowFinding() {
    const std::string finding = TakeFinding();
    if (!finding.empty()) ThrowRuntime("gpu model: {}", finding);
  }
  void QueueCopy(const void* locked, std::size_t bytes, std::function<void()> copy) {
    RefuseInCapture("a queued copy");
    locked_.Close(locked, bytes);
    Enqueue([=, this] { locked_.RunCopy(locked, bytes, copy); }, Queue::kCopies);
  }
  void CheckLocked(const char* what, const void* data, std::size_t bytes) const {
    if (!locked_.Holds(data, bytes)) {
      ThrowRuntime("gpu model: {} ({} bytes) is not in page-locked memory", what, bytes);
    }
  }

  LockedPages locked_;
  bool captures_ = false;
};

}  // namespace

std::unique_ptr<qlora::cuda::Runtime> MakeHostRuntime() { return std::make_unique<HostRuntime>(); }

}  // namespace gpu_host
