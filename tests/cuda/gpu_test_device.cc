#include <utility>

#include "backend/cuda/device/device_runtime.h"
#include "cuda/test_device.h"

namespace qlora::testing_util {

std::shared_ptr<cuda::Device> MakeTestDevice(std::uint64_t,
                                             std::unique_ptr<cuda::AttentionLibrary> library) {
  return std::make_shared<cuda::Device>(cuda::MakeDeviceRuntime(), cuda::MakeDeviceBlas(),
                                        std::move(library));
}

std::unique_ptr<cuda::AttentionLibrary> MakeTestAttention() { return cuda::MakeDeviceAttention(); }

std::optional<std::size_t> AllocatedBytes() { return std::nullopt; }

std::optional<std::int64_t> Waits() { return std::nullopt; }

}  // namespace qlora::testing_util
