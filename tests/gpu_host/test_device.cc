#include "cuda/test_device.h"

#include "gpu_host/host_runtime.h"
#include "gpu_host/model.h"

namespace qlora::testing_util {

std::unique_ptr<cuda::Blas> MakeTestBlas() { return gpu_host::MakeHostBlas(); }

std::unique_ptr<cuda::AttentionLibrary> MakeTestAttention() {
  return gpu_host::MakeHostAttention();
}

std::optional<std::size_t> AllocatedBytes() { return gpu_host::AllocatedBytes(); }

std::optional<std::int64_t> Waits() { return gpu_host::Waits(); }

LockedLimit::LockedLimit(std::size_t bytes) { gpu_host::options.locked_limit = bytes; }
LockedLimit::~LockedLimit() { gpu_host::options.locked_limit = gpu_host::Options().locked_limit; }

}  // namespace qlora::testing_util
