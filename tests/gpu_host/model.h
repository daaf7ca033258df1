// A model of a GPU for tests: kernels run block by block, one fiber for each thread, and what a GPU
// would leave undefined is a finding.
//
//   scheduling   A warp runs until it waits for the rest of the block. Warps that moved in step
//                would hide a missing barrier. The seed chooses the order of blocks, warps, lanes.
//   shared       filled with 0xff (NaN, -1) for each block, and exactly as large as was asked for;
//                variables and what a launch asks for have one limit together
//   barriers     all threads arrive, at the same source line; none has returned
//   collectives  all lanes of the mask arrive, at the same line with the same operation and mask
//   cp.async     the bytes arrive when their thread waits for them; until then they are 0xff
//   launches     are queued and run when the host waits, so that host memory which a kernel refers
//                to, and copies that are not ordered, show
//   streams      are two queues, of ops and of copies, which events alone order: while the host
//                waits for one, the other runs as late as events allow (seed 0), as early (1), or
//                by chance. What a third one captures runs whenever it is queued again
//
// A finding stops the launch and is kept until it is taken. With shadow.cc each access of the
// kernels is checked as well: bounds, initialisation, races. One thread of the host uses the model.
#ifndef QLORA_TESTS_GPU_HOST_MODEL_H_
#define QLORA_TESTS_GPU_HOST_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace gpu_host {

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// A line of a kernel.
struct Site {
  const char* file = nullptr;
  unsigned line = 0;
  static constexpr Site Here(const char* file = __builtin_FILE(),
                             unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

struct Options {
  std::uint64_t seed = 0;               // 0: all in order; 1: in reverse; else shuffled
  std::size_t shared_limit = 99 << 10;  // of compute capability 8.6, 8.9 and 12.0; 9.0 has 227 KiB
  std::size_t locked_limit = ~std::size_t{0};  // page-locked bytes of an allocation
};
extern Options options;

// ---- For the host.

struct Kernel {
  const char* name;
  dim3 grid, block;
  std::size_t shared;
  std::function<void()> body;  // of one thread
};
// What is in kCaptured does not run.
enum class Queue : std::uint8_t { kOps, kCopies, kCaptured };
// The names of queues as streams.
inline void* StreamOf(Queue queue) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(queue));
}
inline Queue QueueOf(const void* stream) {
  return static_cast<Queue>(reinterpret_cast<std::uintptr_t>(stream));
}
void Enqueue(Kernel kernel, Queue queue = Queue::kOps);
// Any other work in the order of the queue.
void Enqueue(std::function<void()> work, Queue queue = Queue::kOps);
std::vector<std::function<void()>> TakeCaptured();
// A point of a queue.
struct Event {
  Queue queue;
  bool passed = false;
};
// The point behind everything that was queued.
std::shared_ptr<Event> Record(Queue queue);
// What is queued from now on runs after the event.
void OrderBehind(Queue queue, std::shared_ptr<const Event> event);

// Runs what was queued, up to the first finding. The rest is dropped with a finding.
void RunQueue();
// The same for one queue, and for what is before an event. What these wait for runs too, and of the
// rest as much as the seed says.
void RunQueue(Queue queue);
void RunUntil(const Event& event);
// Calls of these that found work: the times that the host waited for the device.
std::int64_t Waits();
// True where all that was queued has run.
bool IsIdle();
bool HasFinding();
// The finding since the last call, or "".
std::string TakeFinding();

// Device memory: aligned to 4096, filled with 0xff, and with nothing readable behind its last byte
// as far as the build can tell. The host may touch it only while an Access lives.
std::byte* Allocate(std::size_t bytes);
void Free(void* data);
bool IsDeviceMemory(const void* data, std::size_t bytes);
// Leaves so many addresses out between the last allocation and the next, so that two small ones are
// as far apart as the ends of a large one. Freeing an allocation before them takes them back.
void SkipAddresses(std::size_t bytes);
std::size_t AllocatedBytes();
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// ---- For kernels, through host_gpu.h.

struct Thread {
  uint3 thread_idx;
  unsigned flat = 0;
};
struct Block {
  uint3 block_idx;
  dim3 block_dim, grid_dim;
  unsigned char* shared = nullptr;
};
extern Thread* thread;  // that runs
extern Block block;

// Records a finding and ends the launch.
[[noreturn]] void Fail(const char* what, Site at);

enum class Collective : std::uint8_t {
  kSync,
  kShuffle,
  kXor,
  kUp,
  kDown,
  kBallot,
  kLdMatrix,
  kLdMatrixTrans,
  kMma
};
// What one lane brings to a collective, and receives.
struct Exchange {
  Collective kind;
  std::uint32_t mask;
  Site at;
  int lane = 0;  // the argument of a shuffle
  int width = 32;
  union {
    std::uint64_t word;
    const void* row;
    struct {
      std::uint32_t a[4], b[2];
      float d[4];
    } mma;
  } in = {};
  std::uint64_t out[2] = {};
};
Exchange& Meet(const Exchange& mine);
void SyncThreads(Site at);
void* StaticShared(const void* key, std::size_t bytes);
void CpAsync(void* shared, const void* global, int bytes, Site at);
void CpCommit();
void CpWait(int left);
void ShadowAtomic(const void* data, std::size_t bytes);

template <typename T>
T Shuffle(Collective kind, std::uint32_t mask, T v, int lane, int width, Site at) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  Exchange mine = {.kind = kind, .mask = mask, .at = at, .lane = lane, .width = width};
  std::memcpy(&mine.in.word, &v, sizeof(v));
  const std::uint64_t got = Meet(mine).out[0];
  T r;
  std::memcpy(&r, &got, sizeof(r));
  return r;
}

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_MODEL_H_
