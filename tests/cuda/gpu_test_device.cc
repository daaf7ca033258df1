#include "backend/cuda/device/device_runtime.h"
#include "cuda/test_device.h"

namespace qlora::testing_util {

std::unique_ptr<cuda::Runtime> MakeTestRuntime(std::uint64_t) { return cuda::MakeDeviceRuntime(); }

std::unique_ptr<cuda::Blas> MakeTestBlas() { return cuda::MakeDeviceBlas(); }

std::unique_ptr<cuda::AttentionLibrary> MakeTestAttention() { return cuda::MakeDeviceAttention(); }

std::optional<std::size_t> AllocatedBytes() { return std::nullopt; }

std::optional<std::int64_t> Waits() { return std::nullopt; }

LockedLimit::LockedLimit(std::size_t) {}
LockedLimit::~LockedLimit() = default;

}  // namespace qlora::testing_util
