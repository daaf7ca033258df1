// Backends with a workspace so small that ops of tiny models run in several parts.
#ifndef QLORA_TESTS_CUDA_SMALL_BACKENDS_H_
#define QLORA_TESTS_CUDA_SMALL_BACKENDS_H_

#include <cstdint>
#include <memory>

#include "backend/context_on.h"
#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"

namespace qlora {

// Backends that share one device. seed: that of MakeTestDevice.
inline BackendFactory::Ptr OnDevice(std::uint64_t seed = 31) {
  static constexpr cuda::WorkspaceBudget kBudget = {
      .weight = 1 << 16, .rows = 1 << 15, .sums = 1 << 14};
  std::shared_ptr<cuda::Device> device = testing_util::MakeTestDevice(seed);
  return BackendsBy([device](Context& context, DType compute) {
    return cuda::MakeBackendOn(context, device, compute, kBudget);
  });
}

}  // namespace qlora

#endif  // QLORA_TESTS_CUDA_SMALL_BACKENDS_H_
