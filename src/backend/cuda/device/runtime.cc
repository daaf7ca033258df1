// The GPU of CUDA. The CUDA runtime is linked statically, so that a program with this backend
// starts where there is no driver, and says so when the backend is asked for.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "backend/cuda/device/device_runtime.h"
#include "backend/cuda/device/kernel_image.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr std::size_t kAlignment = 4096;  // of runtime.h
constexpr int kOldestMajor = 8;           // compute capability that kernels are compiled for

class DeviceRuntime final : public Runtime {
 public:
  DeviceRuntime() {
    // Non-blocking: other code of the process that uses the default stream does not make this one
    // wait.
    CheckCuda("make a stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
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
    CheckCuda("allocate", error);
    return Aligned(data);
  }
  void Free(std::byte* data) noexcept override { Release(data, cudaFree); }
  std::size_t Available() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    CheckCuda("read the free memory", cudaMemGetInfo(&free, &total));
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
    CheckCuda("allocate page-locked memory", error);
    std::byte* const begin = Aligned(data);
    std::memset(begin, 0, bytes);
    return begin;
  }
  void FreeLocked(std::byte* data) noexcept override { Release(data, cudaFreeHost); }

  // Memory that is not page-locked is copied to a staging buffer before the call returns.
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return;
    CheckCuda("copy to the device",
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
    CheckCuda("copy from the device",
              cudaMemcpyAsync(locked, device, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void Clear(void* device, std::size_t bytes) override {
    if (bytes > 0) CheckCuda("clear memory", cudaMemsetAsync(device, 0, bytes, stream_));
  }
  // A launch returns before its kernel runs, so an error inside a kernel is first seen here.
  void Synchronize() override { CheckCuda("wait for the device", cudaStreamSynchronize(stream_)); }

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

// A version as CUDA counts, as text: 13.0 for 13000.
std::string TextOf(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Why the device of these properties cannot be used, or empty.
std::string UnsupportedReason(const cudaDeviceProp& properties) {
  const std::string found =
      fmt::format("{}.{} ({})", properties.major, properties.minor, properties.name);
  // 8.0 is the first with products of bfloat16 in the matrix unit and with asynchronous copies to
  // shared memory (gpu.h).
  if (properties.major < kOldestMajor) {
    return fmt::format("expected compute capability {}.0 or newer, found {}", kOldestMajor, found);
  }
  // Makes the context of the process, as a run would.
  const int error = LoadKernelImage();
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // not an error of the next call
  return fmt::format(
      "this program has kernels for the architectures {}; a device of compute capability {} could "
      "not load them: {} ({})",
      QLORA_CUDA_ARCHITECTURES, found, cudaGetErrorString(static_cast<cudaError_t>(error)), error);
}

}  // namespace

void CheckCuda(const char* what, int error) {
  if (error == cudaSuccess) return;
  const char* text = cudaGetErrorString(static_cast<cudaError_t>(error));
  // A code of its own, by which callers tell too little memory from a broken device.
  if (error == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("cuda: {}: {}", what, text));
  }
  ThrowRuntime("cuda: {}: {} ({})", what, text, error);
}

void CheckLaunch(const char* name, int error) { CheckCuda(name, static_cast<cudaError_t>(error)); }

CudaReport DescribeDevice() {
  int driver = 0;  // the newest CUDA that it knows; 0: there is none
  cudaDriverGetVersion(&driver);
  int count = 0;
  cudaDeviceProp properties = {};
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // not an error of the next call
    // A machine without a GPU is a choice of the user; a driver that does not work is not.
    return {
        .problem = fmt::format(
            "expected an NVIDIA GPU and a driver for CUDA {} or newer, found {} ({})",
            TextOf(CUDART_VERSION), driver == 0 ? "none" : "a driver for CUDA " + TextOf(driver),
            error == cudaSuccess ? "no device" : cudaGetErrorString(error)),
        .code = driver == 0 || error == cudaErrorNoDevice ? ErrorCode::kInvalidInput
                                                          : ErrorCode::kRuntime};
  }
  CudaReport report = {.problem = UnsupportedReason(properties),
                       .name = properties.name,
                       .memory_total = properties.totalGlobalMem,
                       .driver = "CUDA " + TextOf(driver)};
  if (!report.problem.empty()) report.code = ErrorCode::kRuntime;
  return report;
}

std::unique_ptr<Runtime> MakeDeviceRuntime() {
  const CudaReport report = DescribeDevice();
  if (!report.problem.empty()) throw Error(report.code, "device cuda: " + report.problem);
  return std::make_unique<DeviceRuntime>();
}

}  // namespace qlora::cuda
