// The device that the tests of the CUDA backend run on. Two programs link the same test objects:
// cuda_tests with a model of a GPU (gpu_host/test_device.cc, test_runtime.cc), cuda_device_tests
// with the GPU of this machine (cuda/gpu_test_device.cc). device_tests runs some of them on the
// model through the code of device/ (device_runtime_test.cc).
#ifndef QLORA_TESTS_CUDA_TEST_DEVICE_H_
#define QLORA_TESTS_CUDA_TEST_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "backend/cuda/device.h"

namespace qlora::testing_util {

// seed: of the order in which a model runs blocks, warps and lanes (gpu_host/model.h); a GPU has an
// order of its own.
std::unique_ptr<cuda::Runtime> MakeTestRuntime(std::uint64_t seed);
std::unique_ptr<cuda::Blas> MakeTestBlas();

// library: attention kernels of somebody else, or null.
inline std::shared_ptr<cuda::Device> MakeTestDevice(
    std::uint64_t seed, std::unique_ptr<cuda::AttentionLibrary> library = nullptr) {
  std::unique_ptr<cuda::Runtime> runtime = MakeTestRuntime(seed);
  return std::make_shared<cuda::Device>(std::move(runtime), MakeTestBlas(), std::move(library));
}

// The library of the device: cuDNN, or the reference behind a model; null where there is none.
std::unique_ptr<cuda::AttentionLibrary> MakeTestAttention();

// Bytes that are allocated on the devices of this process; nothing of a GPU, which rounds them up.
std::optional<std::size_t> AllocatedBytes();

// How often the host has waited for work of a device; nothing of a GPU.
std::optional<std::int64_t> Waits();

// While it lives, the system locks at most so many bytes of an allocation; where that is a GPU's,
// it locks what it likes.
class LockedLimit {
 public:
  explicit LockedLimit(std::size_t bytes);
  ~LockedLimit();
  LockedLimit(const LockedLimit&) = delete;
  LockedLimit& operator=(const LockedLimit&) = delete;
};

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_CUDA_TEST_DEVICE_H_
