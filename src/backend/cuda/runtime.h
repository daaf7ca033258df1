// The host's access to a GPU: memory, copies and waiting. Kernels are launched through gpu.h.
// device/runtime.cc has the GPU of CUDA, tests/gpu_host/host_runtime.cc a model of one.
#ifndef QLORA_BACKEND_CUDA_RUNTIME_H_
#define QLORA_BACKEND_CUDA_RUNTIME_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "backend/cuda/stream.h"

namespace qlora::cuda {

// A point of a stream: behind all work that had been queued when it was recorded.
using Event = std::shared_ptr<const void>;

// Captured kernels, which are launched as one.
using Graph = std::shared_ptr<const void>;

class Runtime {
 public:
  virtual ~Runtime() = default;

  // The stream of all ops. Copies and fills below are queued in it too, unless they are called
  // queued copies.
  virtual Stream stream() const = 0;
  // The stream of queued copies. Nothing but events orders the two streams.
  virtual Stream copies() const = 0;
  virtual Event Record(Stream stream) = 0;
  // Work that is queued in the stream from now on runs after the event.
  virtual void OrderBehind(Stream stream, const Event& event) = 0;
  // The host waits for the event. Errors: Runtime, from a kernel before it.
  virtual void WaitFor(const Event& event) = 0;

  // Calls queue(stream) with a stream of which nothing runs, and returns the kernels that it was
  // given; `last` is taken back, in place of which they may be put. Null where that is not
  // possible. Errors: as queue.
  virtual Graph Capture(const std::function<void(Stream stream)>& queue, Graph last) = 0;
  // Queues captured kernels in stream().
  virtual void Launch(const Graph& graph) = 0;

  // Device memory with undefined values, aligned to 256 bytes. Errors: OutOfMemory.
  virtual std::byte* Allocate(std::size_t bytes) = 0;
  // After everything that was queued before has run.
  virtual void Free(std::byte* data) noexcept = 0;
  // Blocks of a kernel run on them at the same time.
  virtual int Multiprocessors() const = 0;
  // Bytes that can still be allocated.
  virtual std::size_t Available() const = 0;

  // Page-locked memory of the host, zero-filled and aligned to 256 bytes. Null where the system
  // does not lock so much.
  virtual std::byte* AllocateLocked(std::size_t bytes) = 0;
  // After everything that was queued before has run.
  virtual void FreeLocked(std::byte* data) noexcept = 0;

  // Returns when `host`, which is not page-locked, may be reused; this can be before the copy has
  // run.
  virtual void CopyIn(void* device, const void* host, std::size_t bytes) = 0;
  // Returns when all that was queued in stream() before has run and `host` is filled.
  virtual void CopyOut(void* host, const void* device, std::size_t bytes) = 0;
  // Queued copies: the same with page-locked memory, in copies(). They return at once, and `locked`
  // belongs to the copy until it has run.
  virtual void QueueCopyIn(void* device, const void* locked, std::size_t bytes) = 0;
  virtual void QueueCopyOut(void* locked, const void* device, std::size_t bytes) = 0;
  // Sets bytes to 0.
  virtual void Clear(void* device, std::size_t bytes) = 0;
  // Waits for everything that was queued in both streams. Errors: Runtime, from a kernel.
  virtual void Synchronize() = 0;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_RUNTIME_H_
