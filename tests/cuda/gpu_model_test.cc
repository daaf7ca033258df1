// The model of a GPU finds the mistakes that it is made for, and none in a kernel without one.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "gpu_host/host_runtime.h"
#include "gpu_host/mistakes.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"
#include "qlora/error.h"
#include "qlora/tensor.h"
#include "test_build.h"

namespace gpu_host {
namespace {

constexpr int kN = 64;

template <typename T>
T* OnDevice(const std::vector<T>& values) {
  auto* data = reinterpret_cast<T*>(Allocate(values.size() * sizeof(T)));
  const Access access;
  std::memcpy(data, values.data(), values.size() * sizeof(T));
  ShadowWrittenByHost(data, values.size() * sizeof(T));
  return data;
}

// What is found when a kernel with this mistake runs: a finding, "values", or "".
std::string Found(Mistake mistake, std::uint64_t seed) {
  options.seed = seed;
  std::vector<float> in(kN);
  float sum = 0;
  for (int i = 0; i < kN; ++i) sum += in[i] = static_cast<float>(i % 7);
  float* device_in = OnDevice(in);
  auto* out = reinterpret_cast<float*>(Allocate(2 * kN * sizeof(float)));
  QueueMistake(mistake, device_in, out);
  RunQueue();
  std::string found = TakeFinding();
  if (found.empty()) {
    const Access access;
    for (int i = 0; i < 2 * kN; ++i) {
      if (!(out[i] == in[kN - 1 - i % kN] + 2 * sum)) found = "values";
    }
  }
  Free(device_in);
  Free(out);
  return found;
}

struct Expected {
  Mistake mistake;
  const char* plain;   // part of what any build finds, or "" where that is luck
  const char* shadow;  // the same with the check of all accesses, which names the line
};

const Expected kExpected[] = {
    {Mistake::kReturnBeforeBarrier, "barrier", "barrier"},
    {Mistake::kDifferentBarriers, "different ones", "different ones"},
    {Mistake::kLaneMissing, "collective: a lane has returned", "collective: a lane has returned"},
    {Mistake::kShuffleOutsideMask, "outside of the mask", "outside of the mask"},
    {Mistake::kNoBarrierAfterWrite, "values", "mistakes.cu"},
    {Mistake::kNoBarrierBeforeReuse, "", "race"},
    {Mistake::kUnwrittenShared, "values", "unwritten"},
    {Mistake::kUnwrittenGlobal, "values", "unwritten"},
    {Mistake::kOutOfBounds, "", "out of bounds"},
    {Mistake::kSharedTooSmall, "", "out of bounds"},
    {Mistake::kCountWithoutAtomic, "", "race"},
    {Mistake::kBlocksShareASum, "", "mistakes.cu"},
    {Mistake::kNoSyncWarp, "", "mistakes.cu"},
    {Mistake::kCopyNotWaitedFor, "copies under way", "under way"},
    {Mistake::kCopyWithoutBarrier, "", "mistakes.cu"},
    {Mistake::kTooMuchShared, "invalid configuration", "invalid configuration"},
    {Mistake::kTooMuchSharedTogether, "static and dynamic", "static and dynamic"},
};

TEST(GpuModel, FindsNothingWithoutAMistake) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) EXPECT_EQ(Found(Mistake::kNone, seed), "");
}

TEST(GpuModel, FindsMistakes) {
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(static_cast<int>(expected.mistake));
    const std::string part = HasShadow() ? expected.shadow : expected.plain;
    if (part.empty()) continue;
    // Sanitizers end the program themselves.
    if (qlora::Sanitized() && expected.mistake == Mistake::kCopyNotWaitedFor) {
      EXPECT_DEATH(Found(expected.mistake, 0), "use-after-poison");
      continue;
    }
    for (const std::uint64_t seed : {0, 1, 7}) {
      const std::string found = Found(expected.mistake, seed);
      EXPECT_NE(found.find(part), std::string::npos) << "found: " << found;
    }
  }
}

TEST(GpuModel, MatrixUnitMultiplies) {
  const qlora::RandomKey key = qlora::MakeKey(5, qlora::RandomPlace::kTest);
  std::uint64_t next = 0;
  const auto integers = [&](std::size_t count) {
    std::vector<qlora::BFloat16> values(count);
    for (auto& v : values) {
      v = qlora::ToBFloat16(static_cast<float>(qlora::RandomBelow(key, next++, 17)) - 8);
    }
    return values;
  };
  const std::vector<qlora::BFloat16> a = integers(16 * 16);
  const std::vector<qlora::BFloat16> b = integers(16 * 8);
  qlora::BFloat16* device_a = OnDevice(a);
  qlora::BFloat16* device_b = OnDevice(b);
  auto* c = reinterpret_cast<float*>(Allocate(16 * 8 * sizeof(float)));
  QueueMatrixUnit(device_a, device_b, c);
  RunQueue();
  EXPECT_EQ(TakeFinding(), "");
  const Access access;
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += ToFloat(a[m * 16 + k]) * ToFloat(b[k * 8 + n]);
      EXPECT_EQ(c[m * 8 + n], sum) << m << ", " << n;
    }
  }
  for (void* data :
       {static_cast<void*>(device_a), static_cast<void*>(device_b), static_cast<void*>(c)}) {
    Free(data);
  }
}

TEST(GpuModel, DeviceMemoryIsNotForTheHost) {
  if (qlora::Sanitized()) GTEST_SKIP() << "sanitizers report the fault in their own way";
  auto* data = reinterpret_cast<volatile float*>(Allocate(4));
  EXPECT_DEATH(*data = 1, "");
  Free(const_cast<float*>(data));
}

// A queued copy keeps its pages from the host until it has run.
TEST(GpuModel, PageLockedMemoryBelongsToItsCopies) {
  if (qlora::Sanitized()) GTEST_SKIP() << "sanitizers report the fault in their own way";
  const auto runtime = MakeHostRuntime();
  std::byte* device = runtime->Allocate(8192);
  auto* host = reinterpret_cast<volatile int*>(runtime->AllocateLocked(2 * 4096));
  volatile int* const second = host + 1024;
  *host = 3;
  runtime->QueueCopyIn(device, const_cast<int*>(host), 4096);
  EXPECT_DEATH(*host = 4, "");
  *second = 5;  // belongs to no copy yet
  runtime->QueueCopyOut(const_cast<int*>(second), device, 4096);
  EXPECT_DEATH(std::exit(*second), "");
  runtime->Synchronize();
  EXPECT_EQ(*host, 3);
  EXPECT_EQ(*second, 3);
  runtime->FreeLocked(reinterpret_cast<std::byte*>(const_cast<int*>(host)));
  runtime->Free(device);
}

// A graph of CUDA would not hold them.
TEST(GpuModel, TransfersAreNotCaptured) {
  const auto runtime = MakeHostRuntime();
  std::byte* device = runtime->Allocate(16);
  std::byte* locked = runtime->AllocateLocked(16);
  std::vector<std::byte> pageable(16);
  const auto captures = [&](const std::function<void()>& work) {
    try {
      return runtime->Capture([&](qlora::cuda::Stream) { work(); }, nullptr) != nullptr;
    } catch (const qlora::Error&) {
      return false;
    }
  };
  EXPECT_TRUE(captures([] {}));
  EXPECT_FALSE(captures([&] { runtime->CopyIn(device, pageable.data(), 16); }));
  EXPECT_FALSE(captures([&] { runtime->CopyOut(pageable.data(), device, 16); }));
  EXPECT_FALSE(captures([&] { runtime->QueueCopyIn(device, locked, 16); }));
  EXPECT_FALSE(captures([&] { runtime->QueueCopyOut(locked, device, 16); }));
  EXPECT_FALSE(captures([&] { runtime->Clear(device, 16); }));
  EXPECT_FALSE(captures([&] { runtime->Allocate(16); }));
  runtime->FreeLocked(locked);
  runtime->Free(device);
}

// Copies and ops run in the orders that events allow: late, early.
TEST(GpuModel, StreamsAreOrderedByEventsAlone) {
  for (const std::uint64_t seed : {0, 1}) {
    options.seed = seed;
    std::string order;
    const auto write = [&](char name, Queue queue) {
      Enqueue([&order, name] { order += name; }, queue);
    };
    write('a', Queue::kOps);
    write('x', Queue::kCopies);
    const auto after_a = Record(Queue::kOps);
    write('b', Queue::kOps);
    OrderBehind(Queue::kCopies, after_a);
    write('y', Queue::kCopies);
    const auto after_y = Record(Queue::kCopies);
    write('z', Queue::kCopies);
    write('c', Queue::kOps);
    OrderBehind(Queue::kOps, after_y);
    write('d', Queue::kOps);
    RunQueue(Queue::kOps);
    // Late: what ops do not wait for has not run.
    EXPECT_EQ(order, seed == 0 ? "abcxyd" : "xayzbcd") << seed;
    RunQueue();
    EXPECT_EQ(order.size(), 7u);
  }
}

TEST(GpuModel, QueuedCopiesNeedPageLockedMemoryAndOthersRefuseIt) {
  const auto runtime = MakeHostRuntime();
  std::byte* device = runtime->Allocate(16);
  std::byte* locked = runtime->AllocateLocked(16);
  std::vector<std::byte> pageable(16);
  EXPECT_THROW(runtime->QueueCopyIn(device, pageable.data(), 16), qlora::Error);
  EXPECT_THROW(runtime->QueueCopyOut(pageable.data(), device, 16), qlora::Error);
  EXPECT_THROW(runtime->QueueCopyIn(device, locked + 8, 16), qlora::Error);
  EXPECT_THROW(runtime->CopyIn(device, locked, 16), qlora::Error);
  runtime->FreeLocked(locked);
  runtime->Free(device);
}

}  // namespace
}  // namespace gpu_host
