#include "cuda/test_device.h"
#include "gpu_host/host_runtime.h"
#include "gpu_host/model.h"

namespace qlora::testing_util {

std::unique_ptr<cuda::Runtime> MakeTestRuntime(std::uint64_t seed) {
  gpu_host::options.seed = seed;
  return gpu_host::MakeHostRuntime();
}

}  // namespace qlora::testing_util
