#include "cuda/test_device.h"

#include <utility>

#include "gpu_host/host_runtime.h"
#include "gpu_host/model.h"

namespace qlora::testing_util {

std::shared_ptr<cuda::Device> MakeTestDevice(std::uint64_t seed,
                                             std::unique_ptr<cuda::AttentionLibrary> library) {
  gpu_host::options.seed = seed;
  return std::make_shared<cuda::Device>(gpu_host::MakeHostRuntime(), gpu_host::MakeHostBlas(),
                                        std::move(library));
}

std::unique_ptr<cuda::AttentionLibrary> MakeTestAttention() {
  return gpu_host::MakeHostAttention();
}

std::optional<std::size_t> AllocatedBytes() { return gpu_host::AllocatedBytes(); }

std::optional<std::int64_t> Waits() { return gpu_host::Waits(); }

}  // namespace qlora::testing_util
