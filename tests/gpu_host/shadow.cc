// The check of every access of the kernels: bounds, initialisation and races. The kernels are
// compiled with -fsanitize=thread and the program is linked without it, so that the calls which the
// compiler inserts at each access come here.
//
// One cell for each byte of device and shared memory. Two accesses of different threads conflict
// when one of them writes, not both are atomic, and no barrier is between them:
//   the same block, and the same interval between two barriers of the block
//   (of one warp: the same interval between two __syncwarp), or different blocks of one launch.
#include "gpu_host/shadow.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu_host/model.h"

namespace gpu_host {
namespace {

// Epochs: below kFirst they say that there is no such byte, or who wrote it last; else they number
// the intervals between barriers.
constexpr std::uint32_t kNoMemory = 0, kUnwritten = 1, kHost = 2, kFirst = 16;
// Flags beside the thread of a write and of a read.
constexpr std::uint16_t kThread = 1023;
constexpr std::uint16_t kAtomicWrite = 1 << 15, kPending = 1 << 14;
constexpr std::uint16_t kManyWarps = 1 << 15, kManyLanes = 1 << 14;

struct Cell {
  std::uint32_t write_epoch;
  std::uint16_t writer, write_warp_epoch;
  std::uint32_t read_epoch;
  std::uint16_t reader, read_warp_epoch;
};

std::uintptr_t range_begin = 0;
std::size_t range_bytes = 0;
Cell* cells = nullptr;
std::uint32_t epoch = kFirst, launch_epoch = kFirst, block_epoch = kFirst;
std::array<std::uint16_t, 32> warp_epoch;
bool inside = false;  // of a launch

// Null for stacks and globals, which are not looked at.
Cell* CellOf(const void* p) {
  const std::size_t at = reinterpret_cast<std::uintptr_t>(p) - range_begin;
  return at < range_bytes ? cells + at : nullptr;
}

// The line of the kernel: the program is linked with -no-pie.
[[noreturn]] void Report(const char* kind, unsigned other, const void* pc) {
  static char text[512];
  char line[256] = "";
  if (pc != nullptr) {
    char command[96];
    std::snprintf(command, sizeof(command), "addr2line -s -e /proc/%d/exe %p 2>/dev/null",
                  static_cast<int>(getpid()), pc);
    if (FILE* output = popen(command, "r")) {
      if (std::fgets(line, sizeof(line), output) != nullptr) line[std::strcspn(line, "\n")] = 0;
      pclose(output);
    }
  }
  std::snprintf(text, sizeof(text), "%s, other thread %u, line %s", kind, other & kThread, line);
  Fail(text, {});
}

bool SameWarp(std::uint16_t other, std::uint16_t me) { return (other & kThread) / 32 == me / 32; }

// A write of another thread in this launch that no barrier separates from this access.
void CheckEarlierWrite(const Cell& c, std::uint16_t me, bool atomic, const char* kind,
                       const void* pc) {
  if (c.write_epoch < launch_epoch || (atomic && (c.writer & kAtomicWrite) != 0)) return;
  const bool ordered = SameWarp(c.writer, me) && c.write_warp_epoch != warp_epoch[me / 32];
  if (c.write_epoch == epoch && (c.writer & kThread) != me && !ordered) Report(kind, c.writer, pc);
  if (c.write_epoch < block_epoch) Report("race between blocks", c.writer, pc);
}

// The same of earlier reads.
void CheckEarlierRead(const Cell& c, std::uint16_t me, const void* pc) {
  if (c.read_epoch < launch_epoch) return;
  if (c.read_epoch == epoch) {
    const bool other_warp = (c.reader & kManyWarps) != 0 || !SameWarp(c.reader, me);
    const bool other_lane = (c.reader & kManyLanes) != 0 || (c.reader & kThread) != me;
    if (other_warp || (other_lane && c.read_warp_epoch == warp_epoch[me / 32])) {
      Report("race: write after read", c.reader, pc);
    }
  }
  if (c.read_epoch < block_epoch) Report("race between blocks", c.reader, pc);
}

void NoteRead(Cell& c, std::uint16_t me) {
  std::uint16_t reader = me;
  if (c.read_epoch == epoch) {
    const bool same_lane = (c.reader & kManyLanes) == 0 && (c.reader & kThread) == me;
    if ((c.reader & kManyWarps) != 0 || !SameWarp(c.reader, me)) {
      reader |= kManyWarps;
    } else if (c.read_warp_epoch == warp_epoch[me / 32] && !same_lane) {
      reader |= kManyLanes;
    }
  }
  c.read_epoch = epoch;
  c.reader = reader;
  c.read_warp_epoch = warp_epoch[me / 32];
}

enum class Kind : std::uint8_t { kRead, kWrite, kAtomic };

template <Kind kKind>
void Check(const void* p, std::size_t n, std::size_t alignment, const void* pc) {
  Cell* c = CellOf(p);
  if (c == nullptr || !inside || thread == nullptr) return;
  if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0) Report("misaligned access", 0, pc);
  const auto me = static_cast<std::uint16_t>(thread->flat);
  for (const Cell* end = c + n; c != end; ++c) {
    if (c->write_epoch == kNoMemory) Report("out of bounds", 0, pc);
    if (kKind != Kind::kWrite && c->write_epoch == kUnwritten) {
      Report("read of unwritten memory", 0, pc);
    }
    if ((c->writer & kPending) != 0) Report("access to a copy under way", c->writer, pc);
    const bool reads = kKind == Kind::kRead;
    CheckEarlierWrite(*c, me, kKind == Kind::kAtomic,
                      reads ? "race: read after write" : "race: write after write", pc);
    if (reads) {
      NoteRead(*c, me);
      continue;
    }
    CheckEarlierRead(*c, me, pc);
    c->write_epoch = epoch;
    c->writer = me | (kKind == Kind::kAtomic ? kAtomicWrite : 0);
    c->write_warp_epoch = warp_epoch[me / 32];
  }
}

void SetEpoch(const void* p, std::size_t bytes, std::uint32_t value) {
  Cell* c = CellOf(p);
  if (c == nullptr) return;
  for (std::size_t i = 0; i < bytes; ++i) c[i] = {value, 0, 0, 0, 0, 0};
}

}  // namespace

bool HasShadow() { return true; }
void ShadowRange(const void* begin, std::size_t bytes) {
  void* pages = mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) std::abort();
  cells = static_cast<Cell*>(pages);
  range_begin = reinterpret_cast<std::uintptr_t>(begin);
  range_bytes = bytes;
}
void ShadowAllocated(const void* p, std::size_t bytes) { SetEpoch(p, bytes, kUnwritten); }
void ShadowFreed(const void* p, std::size_t bytes) { SetEpoch(p, bytes, kNoMemory); }
void ShadowWrittenByHost(const void* p, std::size_t bytes) { SetEpoch(p, bytes, kHost); }

void ShadowLaunch() {
  launch_epoch = ++epoch;
  inside = true;
}
void ShadowLaunchEnd() { inside = false; }
void ShadowBlock() { block_epoch = ++epoch; }
void ShadowBlockBarrier() { ++epoch; }
void ShadowWarpBarrier(unsigned warp) { ++warp_epoch[warp]; }
void ShadowRead(const void* p, std::size_t n) { Check<Kind::kRead>(p, n, 1, nullptr); }
void ShadowWrite(const void* p, std::size_t n) { Check<Kind::kWrite>(p, n, 1, nullptr); }
void ShadowPending(const void* p, std::size_t bytes, bool pending) {
  Cell* c = CellOf(p);
  for (std::size_t i = 0; c != nullptr && i < bytes; ++i) {
    const int rest = c[i].writer & ~kPending;
    c[i].writer = static_cast<std::uint16_t>(rest | (pending ? kPending : 0));
  }
}
void ShadowAtomic(const void* p, std::size_t n) {
  Check<Kind::kAtomic>(p, n, n, __builtin_return_address(0));
}

}  // namespace gpu_host

// What the compiler calls.
#define GPU_HOST_PC __builtin_return_address(0)
#define GPU_HOST_ACCESS(n)                                                                         \
  void __tsan_read##n(void* p) { gpu_host::Check<gpu_host::Kind::kRead>(p, n, n, GPU_HOST_PC); }   \
  void __tsan_write##n(void* p) { gpu_host::Check<gpu_host::Kind::kWrite>(p, n, n, GPU_HOST_PC); } \
  void __tsan_unaligned_read##n(void* p) {                                                         \
    gpu_host::Check<gpu_host::Kind::kRead>(p, n, 1, GPU_HOST_PC);                                  \
  }                                                                                                \
  void __tsan_unaligned_write##n(void* p) {                                                        \
    gpu_host::Check<gpu_host::Kind::kWrite>(p, n, 1, GPU_HOST_PC);                                 \
  }
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_read_range(void* p, std::size_t n) {
  gpu_host::Check<gpu_host::Kind::kRead>(p, n, 1, GPU_HOST_PC);
}
void __tsan_write_range(void* p, std::size_t n) {
  gpu_host::Check<gpu_host::Kind::kWrite>(p, n, 1, GPU_HOST_PC);
}
GPU_HOST_ACCESS(1)
GPU_HOST_ACCESS(2)
GPU_HOST_ACCESS(4)
GPU_HOST_ACCESS(8)
GPU_HOST_ACCESS(16)
}
