// The device that all CUDA backends of the process share.
#include <memory>
#include <mutex>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device/device_runtime.h"

namespace qlora {
namespace {

std::shared_ptr<cuda::Device> SharedDevice() {
  static std::mutex mutex;
  // Weak: the device ends with its last backend. A static device would end after main, when the
  // CUDA runtime may be gone already.
  static std::weak_ptr<cuda::Device> shared;
  const std::lock_guard lock(mutex);
  std::shared_ptr<cuda::Device> device = shared.lock();
  if (device == nullptr) {
    std::unique_ptr<cuda::Runtime> runtime = cuda::MakeDeviceRuntime();
    device = std::make_shared<cuda::Device>(std::move(runtime), cuda::MakeDeviceBlas(),
                                            cuda::MakeDeviceAttention());
    shared = device;
  }
  return device;
}

}  // namespace

CudaReport DescribeCuda() { return cuda::DescribeDevice(); }

CudaTrial TryCuda() {
  CudaTrial trial;
  try {
    cuda::MakeDeviceRuntime();
    trial.products = cuda::DescribeBlas();
    trial.attention = cuda::DescribeAttention();
  } catch (const Error& error) {
    trial.problem = error.what();
  }
  return trial;
}

std::unique_ptr<Backend> MakeCudaBackend(Context& context, DType compute) {
  return cuda::MakeBackendOn(context, SharedDevice(), compute);
}

}  // namespace qlora
