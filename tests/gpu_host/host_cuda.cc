#include "gpu_host/host_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/device/kernel_image.h"
#include "base/memory.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

// The library's types are opaque; these are behind them here.
struct CUevent_st {
  std::shared_ptr<gpu_host::Event> at;
  std::shared_ptr<float> time = std::make_shared<float>(-1.0f);  // -1: it has not happened
};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
  std::shared_ptr<int> lives = std::make_shared<int>();
};

namespace gpu_host {

CudaOptions cuda_options;
float milliseconds = 0;

namespace {

// What the library knows of a process.
struct Process {
  cudaError_t error = cudaSuccess;  // the last one, which nobody has asked for
  unsigned streams = 0;
  bool captures = false;
  bool capture_is_valid = false;
  std::map<const std::byte*, std::size_t> locked;  // first byte -> bytes
};
Process process;

cudaError_t Result(cudaError_t error) {
  if (error != cudaSuccess) process.error = error;
  return error;
}

// What a stream that is captured refuses; nothing of it can be launched then.
cudaError_t InvalidateCapture(cudaError_t error) {
  process.capture_is_valid = false;
  return Result(error);
}

// After the host has waited.
cudaError_t FoundNothing() {
  if (!HasFinding()) return cudaSuccess;
  ADD_FAILURE() << TakeFinding();
  return Result(cudaErrorLaunchFailure);
}

bool IsLocked(const void* data) {
  const auto* byte = static_cast<const std::byte*>(data);
  auto block = process.locked.upper_bound(byte);
  if (block == process.locked.begin()) return false;
  --block;
  return byte < block->first + block->second;
}

// Nothing that is queued may use memory that is given back.
void ExpectIdle() { EXPECT_TRUE(IsIdle()) << "memory is freed before what was queued has run"; }

}  // namespace
}  // namespace gpu_host

namespace qlora::cuda {

int LoadKernelImage() { return cudaSuccess; }

}  // namespace qlora::cuda

// ---- Errors and devices.

using gpu_host::process;
using gpu_host::Result;

cudaError_t cudaGetLastError() { return std::exchange(process.error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return process.error; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the model"; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrPageableMemoryAccess:
      *value = gpu_host::cuda_options.reads_host ? 1 : 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    default:
      return Result(cudaErrorInvalidValue);
  }
}

// ---- Streams and events.

// The first two are the queues of the model, the third is captured. One runtime at a time has them.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  EXPECT_LT(process.streams, 3u);
  *stream =
      static_cast<cudaStream_t>(gpu_host::StreamOf(static_cast<gpu_host::Queue>(process.streams)));
  ++process.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  process.streams = 0;  // all of them are destroyed together
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const gpu_host::Queue queue = gpu_host::QueueOf(stream);
  if (queue == gpu_host::Queue::kCaptured) {
    return gpu_host::InvalidateCapture(cudaErrorStreamCaptureUnsupported);
  }
  gpu_host::RunQueue(queue);
  return gpu_host::FoundNothing();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const gpu_host::Queue queue = gpu_host::QueueOf(stream);
  gpu_host::Enqueue([time = event->time] { *time = gpu_host::milliseconds; }, queue);
  event->at = gpu_host::Record(queue);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->at->queue == gpu_host::Queue::kCaptured) {
    return gpu_host::InvalidateCapture(cudaErrorCapturedEvent);
  }
  gpu_host::RunUntil(*event->at);
  return gpu_host::FoundNothing();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (*start->time < 0 || *end->time < 0) return Result(cudaErrorNotReady);
  *ms = *end->time - *start->time;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  gpu_host::OrderBehind(gpu_host::QueueOf(stream), event->at);
  return cudaSuccess;
}

// ---- Graphs.

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool captures = process.captures && gpu_host::QueueOf(stream) == gpu_host::Queue::kCaptured;
  *status = captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  EXPECT_EQ(gpu_host::QueueOf(stream), gpu_host::Queue::kCaptured);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  process.captures = process.capture_is_valid = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  std::vector<std::function<void()>> work = gpu_host::TakeCaptured();
  process.captures = false;
  *graph = nullptr;
  if (!process.capture_is_valid) return Result(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(work)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
// The kernels of another graph cannot take the place of these; as many of them can.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo*) {
  if (exec->work.size() != graph->work.size()) return Result(cudaErrorGraphExecUpdateFailure);
  exec->work = graph->work;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const std::function<void()>& work : exec->work) {
    const auto run = [work, lives = std::weak_ptr(exec->lives)] {
      EXPECT_FALSE(lives.expired()) << "a graph is destroyed before it has run";
      work();
    };
    gpu_host::Enqueue(run, gpu_host::QueueOf(stream));
  }
  return cudaSuccess;
}

// ---- Memory.

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (bytes > gpu_host::cuda_options.memory_limit) return Result(cudaErrorMemoryAllocation);
  *data = gpu_host::Allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  gpu_host::ExpectIdle();
  gpu_host::Free(data);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = qlora::HostMemory().Available();
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  if (bytes > gpu_host::options.locked_limit || bytes > gpu_host::cuda_options.memory_limit) {
    return Result(cudaErrorMemoryAllocation);
  }
  std::byte* const locked = qlora::HostMemory().Allocate(bytes);
  std::memset(locked, 0xff, bytes);
  process.locked[locked] = bytes;
  *data = locked;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  gpu_host::ExpectIdle();
  const auto block = process.locked.find(static_cast<std::byte*>(data));
  if (block == process.locked.end()) return Result(cudaErrorInvalidValue);
  qlora::HostMemory().Free(static_cast<std::byte*>(data), block->second);
  process.locked.erase(block);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (gpu_host::cuda_options.failing_copies > 0) {
    --gpu_host::cuda_options.failing_copies;
    cudaMemsetAsync(to, 0xff, bytes, stream);  // as far as it got
    return Result(cudaErrorUnknown);
  }
  const gpu_host::Queue queue = gpu_host::QueueOf(stream);
  if (kind == cudaMemcpyDeviceToHost) {
    EXPECT_TRUE(gpu_host::IsDeviceMemory(from, bytes));
    gpu_host::Enqueue([=] { std::memcpy(to, from, bytes); }, queue);
    return cudaSuccess;
  }
  EXPECT_EQ(kind, cudaMemcpyHostToDevice);
  EXPECT_TRUE(gpu_host::IsDeviceMemory(to, bytes));
  if (gpu_host::cuda_options.reads_host || gpu_host::IsLocked(from)) {
    gpu_host::Enqueue(
        [=] {
          std::memcpy(to, from, bytes);
          gpu_host::ShadowWrittenByHost(to, bytes);
        },
        queue);
    return cudaSuccess;
  }
  const auto* begin = static_cast<const std::byte*>(from);
  gpu_host::Enqueue(
      [to, values = std::vector<std::byte>(begin, begin + bytes)] {
        std::memcpy(to, values.data(), values.size());
        gpu_host::ShadowWrittenByHost(to, values.size());
      },
      queue);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  EXPECT_TRUE(gpu_host::IsDeviceMemory(data, bytes));
  gpu_host::Enqueue(
      [=] {
        std::memset(data, value, bytes);
        gpu_host::ShadowWrittenByHost(data, bytes);
      },
      gpu_host::QueueOf(stream));
  return cudaSuccess;
}
