// The GPU of CUDA. The CUDA runtime is linked statically, so that a program with this backend
// starts where there is no driver, and says so when the backend is asked for.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "backend/cuda/device/device_runtime.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr std::size_t kAlignment = 4096;  // of runtime.h
constexpr int kOldestMajor = 8;           // compute capability that kernels are compiled for

void Check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  // A code of its own, by which callers tell too little memory from a broken device.
  if (error == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("cuda: {}: {}", what, cudaGetErrorString(error)));
  }
  ThrowRuntime("cuda: {}: {} ({})", what, cudaGetErrorString(error), static_cast<int>(error));
}

class DeviceRuntime final : public Runtime {
 public:
  DeviceRuntime() {
    // Non-blocking: other code of the process that uses the default stream does not make this one
    // wait.
    Check("make a stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~DeviceRuntime() override { cudaStreamDestroy(stream_); }

  Stream stream() const override { return stream_; }

  std::byte* Allocate(std::size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes + kAlignment);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not an error of the next call
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cuda: cannot allocate {} bytes of device memory, {} are free", bytes,
                              Available()));
    }
    Check("allocate", error);
    return Aligned(data);
  }
  void Free(std::byte* data) noexcept override { Release(data, cudaFree); }
  std::size_t Available() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    Check("read the free memory", cudaMemGetInfo(&free, &total));
    return free;
  }

  std::byte* AllocateLocked(std::size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes + kAlignment, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not an error of the next call
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cuda: the system does not give {} bytes of page-locked host memory "
                              "for transfers; free host memory, or keep less of it for the run "
                              "(recompute layer in place of offload, a smaller micro-batch)",
                              bytes));
    }
    Check("allocate page-locked memory", error);
    std::byte* const begin = Aligned(data);
    std::memset(begin, 0, bytes);
    return begin;
  }
  void FreeLocked(std::byte* data) noexcept override { Release(data, cudaFreeHost); }

  // Memory that is not page-locked is copied to a staging buffer before the call returns.
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return;
    Check("copy to the device",
          cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    QueueCopyOut(host, device, bytes);
    Synchronize();
  }
  // With page-locked memory the GPU copies by itself, when the stream gets there.
  void QueueCopyIn(void* device, const void* locked, std::size_t bytes) override {
    CopyIn(device, locked, bytes);
  }
  void QueueCopyOut(void* locked, const void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    Check("copy from the device",
          cudaMemcpyAsync(locked, device, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void Clear(void* device, std::size_t bytes) override {
    if (bytes > 0) Check("clear memory", cudaMemsetAsync(device, 0, bytes, stream_));
  }
  // A launch returns before its kernel runs, so an error inside a kernel is first seen here.
  void Synchronize() override { Check("wait for the device", cudaStreamSynchronize(stream_)); }

 private:
  // CUDA aligns to less than kAlignment, so there is room to move the first byte.
  std::byte* Aligned(void* data) {
    auto* begin = static_cast<std::byte*>(data);
    begin += (kAlignment - reinterpret_cast<std::uintptr_t>(data) % kAlignment) % kAlignment;
    const std::lock_guard lock(mutex_);
    allocations_[begin] = data;
    return begin;
  }
  // Gives an allocation back when all that was queued has run.
  void Release(std::byte* data, cudaError_t (*free)(void*)) noexcept {
    const std::lock_guard lock(mutex_);
    const auto allocation = allocations_.find(data);
    // Freeing cannot throw; memory that is unknown, such as null, is nothing to free.
    if (allocation == allocations_.end()) return;
    cudaStreamSynchronize(stream_);
    free(allocation->second);
    allocations_.erase(allocation);
  }

  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;
  std::map<std::byte*, void*> allocations_;  // aligned address -> what CUDA gave
};

}  // namespace

void CheckLaunch(const char* name, int error) { Check(name, static_cast<cudaError_t>(error)); }

CudaReport DescribeDevice() {
  int count = 0;
  cudaDeviceProp properties = {};
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // not an error of the next call
    return {.problem = fmt::format(
                "expected an NVIDIA GPU and a driver for CUDA {}.{} or newer, found none ({})",
                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                error == cudaSuccess ? "no device" : cudaGetErrorString(error))};
  }
  // 8.0 is the first with products of bfloat16 in the matrix unit and with asynchronous copies to
  // shared memory (gpu.h).
  if (properties.major < kOldestMajor) {
    return {.problem =
                fmt::format("expected compute capability {}.0 or newer, found {}.{} ({})",
                            kOldestMajor, properties.major, properties.minor, properties.name)};
  }
  return {.problem = "", .name = properties.name, .memory_total = properties.totalGlobalMem};
}

std::unique_ptr<Runtime> MakeDeviceRuntime() {
  const CudaReport report = DescribeDevice();
  if (!report.problem.empty()) ThrowInvalidInput("device cuda: {}", report.problem);
  return std::make_unique<DeviceRuntime>();
}

}  // namespace qlora::cuda
