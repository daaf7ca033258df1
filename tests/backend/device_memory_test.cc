// The memory of a device that several backends, each on a thread of its own, share.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cuda/device.h"
#include "base/arena.h"

namespace qlora::cuda {
namespace {

// Copies at once; a copy that is not waited for is not there.
class CountingRuntime final : public Runtime {
 public:
  Stream stream() const override { return nullptr; }
  Stream copies() const override { return nullptr; }
  Event Record(Stream) override { return std::make_shared<int>(); }
  void OrderBehind(Stream, const Event&) override { ++orders; }
  void WaitFor(const Event&) override { ++waits; }
  Graph Capture(const std::function<void(Stream)>&, Graph) override { return nullptr; }
  void Launch(const Graph&) override {}
  std::byte* Allocate(std::size_t bytes) override { return HostMemory().Allocate(bytes); }
  void Free(std::byte*) noexcept override {}
  int Multiprocessors() const override { return 1; }
  std::size_t Available() const override { return 0; }
  std::byte* AllocateLocked(std::size_t bytes) override {
    return bytes <= locked_limit ? HostMemory().Allocate(bytes) : nullptr;
  }
  void FreeLocked(std::byte*) noexcept override {}
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    std::memcpy(host, device, bytes);
    Synchronize();
  }
  void QueueCopyIn(void* device, const void* locked, std::size_t bytes) override {
    CopyIn(device, locked, bytes);
  }
  void QueueCopyOut(void* locked, const void* device, std::size_t bytes) override {
    std::memcpy(locked, device, bytes);
  }
  void Clear(void* device, std::size_t bytes) override { std::memset(device, 0, bytes); }
  void Synchronize() override { ++waits; }

  std::size_t locked_limit = ~std::size_t{0};
  std::atomic<int> orders = 0;
  std::atomic<int> waits = 0;
};

// The thread sanitizer sees what is not locked.
TEST(DeviceMemory, ServesSeveralThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  constexpr std::size_t kFloats = 16;
  CountingRuntime runtime;
  DeviceMemory memory(runtime);
  const auto work = [&](int thread) {
    std::vector<float> device(kFloats);
    std::vector<float> host(kFloats);
    for (int round = 0; round < kRounds; ++round) {
      const auto value = static_cast<float>(thread * kRounds + round);
      host.assign(kFloats, value);
      memory.QueueUpload(host.data(), device.data(), kFloats * sizeof(float));
      memory.WaitFor(host.data(), kFloats * sizeof(float));
      host.assign(kFloats, -1);
      memory.QueueDownload(device.data(), host.data(), kFloats * sizeof(float));
      memory.WaitFor(host.data(), kFloats * sizeof(float));
      EXPECT_EQ(host, std::vector<float>(kFloats, value));
      memory.Download(device.data(), host.data(), kFloats * sizeof(float));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  EXPECT_GT(runtime.waits, 0);
}

TEST(DeviceMemory, WaitsForWhatWasQueuedAlone) {
  CountingRuntime runtime;
  DeviceMemory memory(runtime);
  std::vector<float> device(8);
  std::vector<float> host(8);
  memory.QueueUpload(host.data(), device.data(), 4 * sizeof(float));
  memory.WaitFor(host.data() + 4, 4 * sizeof(float));
  EXPECT_EQ(runtime.waits, 0);
  memory.WaitFor(host.data() + 3, 4 * sizeof(float));
  EXPECT_EQ(runtime.waits, 1);
  memory.WaitFor(host.data(), 4 * sizeof(float));
  EXPECT_EQ(runtime.waits, 1);
}

TEST(DeviceMemory, OrdersOpsBehindWhatTheyNeedAlone) {
  CountingRuntime runtime;
  DeviceMemory memory(runtime);
  std::vector<float> device(8);
  std::vector<float> host(8);
  const auto queue = [&](int i) {
    memory.QueueUpload(host.data() + 4 * i, device.data() + 4 * i, 4 * sizeof(float));
  };
  // Orders that are not those of the copies behind ops.
  const auto orders_of = [&](int i) {
    const int before = runtime.orders;
    memory.OpsWaitFor(device.data() + 4 * i, 4 * sizeof(float));
    return runtime.orders - before;
  };
  queue(0);
  EXPECT_EQ(orders_of(1), 0);
  queue(1);
  EXPECT_EQ(orders_of(1), 1);
  EXPECT_EQ(orders_of(0), 0);  // the first ran before the second
  queue(0);
  EXPECT_EQ(orders_of(1), 0);
  EXPECT_EQ(orders_of(0), 1);
  memory.Download(device.data(), host.data(), sizeof(float));
  EXPECT_EQ(orders_of(0), 0);
  memory.WaitFor(host.data(), sizeof(float));
  EXPECT_EQ(runtime.waits, 1);  // that of the download
}

// Where the system does not lock enough memory, transfers are in the order of ops.
TEST(DeviceMemory, TakesPageableMemoryWhereTheSystemDoesNotLockIt) {
  CountingRuntime runtime;
  DeviceMemory memory(runtime);
  runtime.locked_limit = 4096;
  EXPECT_EQ(memory.staging().Unlocked(), 0u);
  std::vector<std::byte> device(64);
  {
    const Arena locked(4096, memory.staging());
    EXPECT_EQ(memory.staging().Unlocked(), 0u);
    const Arena pageable(8192, memory.staging());
    EXPECT_EQ(memory.staging().Unlocked(), 8192u);
    // Behind a queued copy of the same bytes from memory that is locked.
    memory.QueueUpload(locked.data(), device.data(), 64);
    const int orders = runtime.orders;
    std::byte* const at = const_cast<std::byte*>(pageable.data()) + 8192 - 64;
    at[1] = std::byte{7};
    memory.QueueUpload(at, device.data(), 64);
    EXPECT_EQ(device[1], std::byte{7});
    device[2] = std::byte{9};
    memory.QueueDownload(device.data(), at, 64);
    EXPECT_EQ(at[2], std::byte{9});
    EXPECT_EQ(runtime.orders, orders + 1);
    EXPECT_EQ(runtime.waits, 1);
  }
  EXPECT_EQ(memory.staging().Unlocked(), 0u);
}

}  // namespace
}  // namespace qlora::cuda
