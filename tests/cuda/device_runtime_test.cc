// The runtime of device/ on the model of a GPU. Besides these tests, CudaTransfer and CudaCapture
// run on it in this program.
#include "backend/cuda/device/device_runtime.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/test_device.h"
#include "gpu_host/host_cuda.h"
#include "gpu_host/model.h"
#include "qlora/error.h"

namespace qlora {

std::unique_ptr<cuda::Runtime> testing_util::MakeTestRuntime(std::uint64_t seed) {
  gpu_host::options.seed = seed;
  return cuda::MakeDeviceRuntime();
}

namespace cuda {
namespace {

class DeviceRuntimeTest : public testing::Test {
 protected:
  ~DeviceRuntimeTest() override {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // none is left for the next call
    gpu_host::cuda_options = {};
  }
};

constexpr std::size_t kBytes = 4096;

// While the host writes on, as it may after CopyIn: where the device takes the bytes by itself, the
// call has waited for them.
TEST_F(DeviceRuntimeTest, TakesTheBytesOfPageableMemory) {
  for (const bool reads_host : {false, true}) {
    gpu_host::cuda_options.reads_host = reads_host;
    const auto runtime = testing_util::MakeTestRuntime(0);
    std::byte* const device = runtime->Allocate(kBytes);
    std::vector<std::byte> host(kBytes, std::byte{1});
    runtime->CopyIn(device, host.data(), kBytes);
    std::fill(host.begin(), host.end(), std::byte{2});
    runtime->CopyOut(host.data(), device, kBytes);
    EXPECT_EQ(host, std::vector<std::byte>(kBytes, std::byte{1})) << reads_host;
    runtime->Free(device);
  }
}

TEST_F(DeviceRuntimeTest, FreesBehindWhatWasQueuedInBothStreams) {
  const auto runtime = testing_util::MakeTestRuntime(0);
  std::byte* const device = runtime->Allocate(kBytes);
  std::byte* const locked = runtime->AllocateLocked(kBytes);
  runtime->QueueCopyIn(device, locked, kBytes);
  runtime->Clear(device, kBytes);
  runtime->Free(device);
  std::byte* const other = runtime->Allocate(kBytes);
  runtime->QueueCopyIn(other, locked, kBytes);
  runtime->FreeLocked(locked);
  runtime->Free(other);
  EXPECT_TRUE(gpu_host::IsIdle());
}

TEST_F(DeviceRuntimeTest, WaitsForBothStreams) {
  const auto runtime = testing_util::MakeTestRuntime(0);
  std::byte* const device = runtime->Allocate(kBytes);
  std::byte* const locked = runtime->AllocateLocked(kBytes);
  runtime->QueueCopyIn(device, locked, kBytes);
  runtime->Clear(device, kBytes);
  runtime->Synchronize();
  EXPECT_TRUE(gpu_host::IsIdle());
  runtime->FreeLocked(locked);
  runtime->Free(device);
}

// What cannot be captured is no graph, and no error of the next launch.
TEST_F(DeviceRuntimeTest, GivesNoGraphOfWhatCannotBeCaptured) {
  const auto runtime = testing_util::MakeTestRuntime(0);
  const auto wait = [](Stream stream) { cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); };
  EXPECT_EQ(runtime->Capture(wait, nullptr), nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(runtime->Capture(
                   [&](Stream stream) {
                     wait(stream);
                     throw Error(ErrorCode::kRuntime, "an op that cannot be captured");
                   },
                   nullptr),
               Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// A graph with other kernels is made anew, and the one that goes has run.
TEST_F(DeviceRuntimeTest, ReplacesAGraphThatRuns) {
  const auto runtime = testing_util::MakeTestRuntime(0);
  int runs = 0;
  const auto capture = [&](int kernels, Graph last) {
    return runtime->Capture(
        [&](Stream stream) {
          for (int i = 0; i < kernels; ++i) {
            gpu_host::Enqueue([&] { ++runs; }, gpu_host::QueueOf(stream));
          }
        },
        std::move(last));
  };
  Graph graph;
  int expected = 0;
  for (const int kernels : {1, 1, 3, 3, 2}) {
    graph = capture(kernels, std::move(graph));
    ASSERT_NE(graph, nullptr);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    runtime->Launch(graph);
    expected += kernels;
  }
  graph = nullptr;
  EXPECT_EQ(runs, expected);
}

TEST_F(DeviceRuntimeTest, LeavesNoErrorOfTooLittleMemory) {
  gpu_host::cuda_options.memory_limit = kBytes;
  const auto runtime = testing_util::MakeTestRuntime(0);
  EXPECT_EQ(runtime->AllocateLocked(kBytes + 1), nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  try {
    runtime->Allocate(kBytes + 1);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
  }
}

}  // namespace
}  // namespace cuda
}  // namespace qlora
