// Threads, barriers and launches of the model.
#include "gpu_host/model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "gpu_host/asan.h"
#include "gpu_host/fiber.h"
#include "gpu_host/shadow.h"
#include "gpu_host/warp.h"

namespace gpu_host {

Options options;
Thread* thread = nullptr;
Block block;

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostWarps = kMostThreads / 32;

struct Copy {  // cp.async
  void* to;
  const void* from;
  int bytes;
  int group;
};
constexpr int kCopyBytes = 16;

struct GpuThread : Thread {
  Fiber fiber;
  enum : std::uint8_t { kReady, kBarrier, kWarp, kDone } state = kDone;
  Site at;
  std::vector<Copy> copies;
  int group = 0;
};
struct Warp {
  std::array<Exchange, 32> lanes;
  std::uint32_t waiting = 0;
  std::uint32_t returned = 0;
};
struct SharedVariable {
  const void* key;
  std::byte* data;
  std::size_t bytes;
};

// The launch that runs.
struct Launched {
  const Kernel* kernel = nullptr;
  unsigned threads = 0;  // of a block
  unsigned live = 0;     // that have not returned
  unsigned at_barrier = 0;
  unsigned warp = 0;                              // that runs
  std::array<std::uint32_t, kMostWarps> ready{};  // lanes that can run
  std::uint32_t ready_warps = 0;
  std::vector<SharedVariable> shared;
};

std::array<GpuThread, kMostThreads> threads;
std::array<Warp, kMostWarps> warps;
Fiber host;
GpuThread* running = nullptr;  // null: the host
Launched launched;
std::string finding;

// xorshift64; the state is not 0.
std::uint64_t random_state = 1;
std::uint64_t Random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

// Jumps to a thread, or to the host (null); returns when somebody jumps back.
void SwitchTo(GpuThread* next) {
  GpuThread* self = running;
  if (next == self) return;
  running = next;
  thread = next;
  Fiber::Jump(self == nullptr ? host : self->fiber, next == nullptr ? host : next->fiber);
}

void Release(unsigned warp, std::uint32_t lanes) {
  if (lanes == 0) return;
  launched.ready[warp] |= lanes;
  launched.ready_warps |= 1u << warp;
  for (std::uint32_t m = lanes; m != 0; m &= m - 1) {
    threads[warp * 32 + std::countr_zero(m)].state = GpuThread::kReady;
  }
}
void ReleaseAll() {
  for (unsigned w = 0; w * 32 < launched.threads; ++w) {
    const unsigned lanes = std::min(32u, launched.threads - w * 32);
    Release(w, lanes == 32 ? ~0u : (1u << lanes) - 1);
  }
}

unsigned AnyBit(std::uint32_t set) {
  const int by = static_cast<int>(Random() % 32);
  return static_cast<unsigned>(std::countr_zero(std::rotr(set, by)) + by) % 32;
}
unsigned FirstBit(std::uint32_t set) { return static_cast<unsigned>(std::countr_zero(set)); }
unsigned LastBit(std::uint32_t set) { return 31 - static_cast<unsigned>(std::countl_zero(set)); }

GpuThread* NextThread() {
  const auto& ready = launched.ready;
  unsigned lane = 0;
  if (options.seed == 0) {
    launched.warp = FirstBit(launched.ready_warps);
    lane = FirstBit(ready[launched.warp]);
  } else if (options.seed == 1) {
    launched.warp = LastBit(launched.ready_warps);
    lane = LastBit(ready[launched.warp]);
  } else {
    const bool can_go_on = (launched.ready_warps >> launched.warp & 1) != 0;
    if (!can_go_on || Random() % 64 == 0) launched.warp = AnyBit(launched.ready_warps);
    lane = AnyBit(ready[launched.warp]);
  }
  launched.ready[launched.warp] &= ~(1u << lane);
  if (ready[launched.warp] == 0) launched.ready_warps &= ~(1u << launched.warp);
  return &threads[launched.warp * 32 + lane];
}

std::string Where(const Site& site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

// "63 at barrier loss.cu:27, 193 returned"
std::string WhoWaits() {
  std::map<std::string, unsigned> groups;
  for (unsigned t = 0; t < launched.threads; ++t) {
    const GpuThread& who = threads[t];
    if (who.state == GpuThread::kDone) ++groups["returned"];
    if (who.state == GpuThread::kBarrier) ++groups["at barrier " + Where(who.at)];
    if (who.state == GpuThread::kWarp) ++groups["at warp collective " + Where(who.at)];
  }
  std::string text;
  for (const auto& [what, count] : groups) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  }
  return text;
}

// Runs whoever is next. The caller has noted where it waits.
void Yield() {
  if (launched.ready_warps != 0) return SwitchTo(NextThread());
  if (launched.live != 0)
    finding = std::string("deadlock: ") + launched.kernel->name + ", " + WhoWaits();
  SwitchTo(nullptr);
}

void RunThreads() {
  for (;;) {
    launched.kernel->body();
    if (!running->copies.empty()) Fail("cp.async: a thread returns with copies under way", {});
    running->state = GpuThread::kDone;
    --launched.live;
    warps[running->flat / 32].returned |= 1u << running->flat % 32;
    Yield();
  }
}

void FinishCopy(const Copy& copy) {
  Unpoison(copy.to, kCopyBytes);
  ShadowPending(copy.to, kCopyBytes, false);
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, kCopyBytes - copy.bytes);
  ShadowWrite(copy.to, kCopyBytes);
}

bool IsValid(const Kernel& kernel) {
  const std::uint64_t count = std::uint64_t{kernel.block.x} * kernel.block.y * kernel.block.z;
  return count > 0 && count <= kMostThreads && kernel.grid.x <= 0x7fffffffu &&
         kernel.grid.y <= 65535 && kernel.grid.z <= 65535 && kernel.shared <= options.shared_limit;
}

// The order of `count` blocks: (i * step + shift) mod count, with a step that is prime to count.
struct Order {
  std::uint64_t step = 1, shift = 0;

  explicit Order(std::uint64_t count) {
    if (options.seed == 0) return;
    shift = options.seed == 1 ? count - 1 : Random() % count;
    if (options.seed == 1) step = std::max<std::uint64_t>(1, count - 1);
    while (options.seed > 1) {
      step = Random() % std::min<std::uint64_t>(count, 1 << 20) + 1;
      if (std::gcd(step, count) == 1) break;
    }
  }
};

void StartBlock(std::uint64_t index, std::byte* shared) {
  const Kernel& kernel = *launched.kernel;
  const dim3& grid = kernel.grid;
  block = {.block_idx = {static_cast<unsigned>(index % grid.x),
                         static_cast<unsigned>(index / grid.x % grid.y),
                         static_cast<unsigned>(index / grid.x / grid.y)},
           .block_dim = kernel.block,
           .grid_dim = grid,
           .shared = reinterpret_cast<unsigned char*>(shared)};
  ShadowBlock();
  if (kernel.shared > 0) {
    std::memset(shared, 0xff, kernel.shared);
    ShadowAllocated(shared, kernel.shared);
  }
  for (const SharedVariable& v : launched.shared) {
    std::memset(v.data, 0xff, v.bytes);
    ShadowAllocated(v.data, v.bytes);
  }
  launched.live = launched.threads;
  launched.at_barrier = 0;
  for (unsigned w = 0; w * 32 < launched.threads; ++w) {
    const unsigned lanes = std::min(32u, launched.threads - w * 32);
    warps[w].waiting = 0;
    warps[w].returned = lanes == 32 ? 0 : ~0u << lanes;
    launched.ready[w] = 0;
  }
  launched.ready_warps = 0;
  for (unsigned t = 0; t < launched.threads; ++t) {
    threads[t].copies.clear();
    threads[t].group = 0;
  }
  ReleaseAll();
}

void RunKernel(const Kernel& kernel) {
  if (!IsValid(kernel)) {
    finding = std::string("launch: invalid configuration, ") + kernel.name;
    return;
  }
  random_state = options.seed * 0x9e3779b97f4a7c15u | 1;
  for (int i = 0; i < 8; ++i) Random();
  launched = {};
  launched.kernel = &kernel;
  launched.threads = kernel.block.x * kernel.block.y * kernel.block.z;
  for (unsigned t = 0; t < launched.threads; ++t) {
    threads[t].flat = t;
    threads[t].thread_idx = {t % kernel.block.x, t / kernel.block.x % kernel.block.y,
                             t / (kernel.block.x * kernel.block.y)};
    if (!threads[t].fiber.ready()) threads[t].fiber.Start(&RunThreads);
  }
  std::byte* shared = kernel.shared > 0 ? Allocate(kernel.shared) : nullptr;
  ShadowLaunch();
  const std::uint64_t count = std::uint64_t{kernel.grid.x} * kernel.grid.y * kernel.grid.z;
  const Order order(count);
  for (std::uint64_t i = 0; i < count && finding.empty(); ++i) {
    StartBlock((i * order.step + order.shift) % count, shared);
    Yield();
  }
  ShadowLaunchEnd();
  if (!finding.empty()) {  // the stacks hold frames that are given up; kernels own nothing
    for (GpuThread& t : threads) t.fiber.GiveUp();
  }
  if (shared != nullptr) Free(shared);
  for (const SharedVariable& v : launched.shared) Free(v.data);
}

}  // namespace

void Enqueue(Kernel kernel, Queue queue) {
  Enqueue([kernel = std::move(kernel)] { RunKernel(kernel); }, queue);
}

bool HasFinding() { return !finding.empty(); }
std::string TakeFinding() { return std::exchange(finding, {}); }

void Fail(const char* what, Site at) {
  finding = std::string(what) + ", " + launched.kernel->name;
  if (thread != nullptr) {
    finding +=
        ", block " + std::to_string(block.block_idx.x) + " thread " + std::to_string(thread->flat);
  }
  if (at.file != nullptr) finding += ", at " + Where(at);
  for (;;) SwitchTo(nullptr);
}

void SyncThreads(Site at) {
  running->at = at;
  running->state = GpuThread::kBarrier;
  if (launched.live != launched.threads) Fail("barrier: threads have returned before it", at);
  if (++launched.at_barrier == launched.live) {
    launched.at_barrier = 0;
    ShadowBlockBarrier();
    for (unsigned t = 0; t < launched.threads; ++t) {
      if (threads[t].at.line != at.line) Fail("barrier: threads wait at different ones", at);
    }
    ReleaseAll();
  }
  Yield();
}

// The last lane of the mask that arrives computes for all.
Exchange& Meet(const Exchange& mine) {
  GpuThread* self = running;
  const unsigned lane = self->flat % 32;
  const unsigned w = self->flat / 32;
  Warp& warp = warps[w];
  if ((mine.mask >> lane & 1) == 0) Fail("collective: the lane is not in its mask", mine.at);
  if ((mine.mask & warp.returned) != 0) Fail("collective: a lane has returned", mine.at);
  warp.lanes[lane] = mine;
  warp.waiting |= 1u << lane;
  if ((warp.waiting & mine.mask) == mine.mask) {
    for (unsigned l = 0; l < 32; ++l) {
      if ((mine.mask >> l & 1) == 0) continue;
      const Exchange& other = warp.lanes[l];
      if (other.kind != mine.kind || other.mask != mine.mask || other.at.line != mine.at.line) {
        Fail("collective: lanes wait at different ones", mine.at);
      }
    }
    warp.waiting &= ~mine.mask;
    Complete(warp.lanes, mine);
    if (mine.kind == Collective::kSync) ShadowWarpBarrier(w);
    Release(w, mine.mask);
  } else {
    self->state = GpuThread::kWarp;
    self->at = mine.at;
  }
  Yield();
  return warp.lanes[lane];
}

void* StaticShared(const void* key, std::size_t bytes) {
  for (const SharedVariable& v : launched.shared) {
    if (v.key == key) return v.data;
  }
  std::size_t together = launched.kernel->shared + bytes;
  for (const SharedVariable& v : launched.shared) together += v.bytes;
  if (together > options.shared_limit)
    Fail("launch: too much shared memory, static and dynamic", {});
  launched.shared.push_back({key, Allocate(bytes), bytes});
  return launched.shared.back().data;
}

void CpAsync(void* to, const void* from, int bytes, Site at) {
  if (reinterpret_cast<std::uintptr_t>(to) % kCopyBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % kCopyBytes != 0) {
    Fail("cp.async: an address that is not aligned to 16", at);
  }
  if (bytes < 0 || bytes > kCopyBytes) Fail("cp.async: a size that is not in [0, 16]", at);
  ShadowRead(from, bytes);
  ShadowWrite(to, kCopyBytes);
  if (IsPoisoned(from, bytes)) Fail("cp.async: reads what is not there", at);
  if (IsPoisoned(to, kCopyBytes)) Fail("cp.async: writes what is not there", at);
  std::memset(to, 0xff, kCopyBytes);
  Poison(to, kCopyBytes);
  ShadowPending(to, kCopyBytes, true);
  running->copies.push_back({to, from, bytes, running->group});
}
void CpCommit() { ++running->group; }
void CpWait(int left) {
  std::vector<Copy>& copies = running->copies;
  const auto arrived = [&](const Copy& copy) { return copy.group < running->group - left; };
  const auto end = std::find_if_not(copies.begin(), copies.end(), arrived);
  std::for_each(copies.begin(), end, FinishCopy);
  copies.erase(copies.begin(), end);
}

}  // namespace gpu_host
