// Which of cuBLASLt's algorithms runs: the fastest on the device, where products may be timed.
// Products are queued on the model of a GPU, and take the time that their algorithm says.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "backend/cuda/device/device_runtime.h"
#include "cuda/test_device.h"
#include "gpu_host/host_cublas.h"
#include "gpu_host/host_cuda.h"
#include "gpu_host/model.h"
#include "qlora/error.h"

namespace qlora::cuda {
namespace {

constexpr std::int64_t kLarge = 648;  // rows and columns of products that are worth timing

// What the library was asked for, and what it offers: an algorithm for each of these times, of
// which negative ones are choices without an algorithm.
struct Log {
  std::vector<int> asked;  // how many algorithms, for each question
  std::vector<int> ran;    // the index of the algorithm of each product
  std::vector<float> times = {3, 1, 2};
};
Log& TheLog() {
  static Log log;
  return log;
}

cublasStatus_t Offer(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                     cublasLtMatmulPreference_t, int most, cublasLtMatmulHeuristicResult_t* results,
                     int* found) {
  Log& log = TheLog();
  log.asked.push_back(most);
  *found = std::min(most, static_cast<int>(log.times.size()));
  for (int i = 0; i < *found; ++i) {
    results[i].algo.data[0] = static_cast<std::uint64_t>(i);
    results[i].state = log.times[i] < 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// The first element of d alone: 1 + beta c.
cublasStatus_t Queue(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                     cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void* beta,
                     const void* c, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                     const cublasLtMatmulAlgo_t* algorithm, void*, std::size_t,
                     cudaStream_t stream) {
  const auto index = static_cast<int>(algorithm->data[0]);
  const float factor = *static_cast<const float*>(beta);
  gpu_host::Enqueue(
      [=] {
        Log& log = TheLog();
        log.ran.push_back(index);
        gpu_host::milliseconds += log.times[index];
        const float old = factor == 0 ? 0 : factor * *static_cast<const float*>(c);
        *static_cast<float*>(d) = 1 + old;
      },
      gpu_host::QueueOf(stream));
  return CUBLAS_STATUS_SUCCESS;
}

class DeviceBlasChoice : public testing::Test {
 protected:
  DeviceBlasChoice() {
    TheLog() = {};
    Cublas library = gpu_host::HostCublas();
    library.heuristic = Offer;
    library.matmul = Queue;
    static char workspace;
    blas_ = MakeBlasOf(library, {&workspace, [](void*) {}});
  }
  ~DeviceBlasChoice() override {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // none is left for the next call
    gpu_host::cuda_options = {};
  }

  // c (size, size) = 1 + beta c, where one element counts.
  Gemm ProductOf(std::int64_t size, float beta = 0) {
    const ConstMatrixView a = {operand_.data(), DType::kF32, size, size, kLarge};
    return {.a = a, .b = a, .beta = beta, .c = {c_.data(), DType::kF32, size, size, kLarge}};
  }
  // The algorithm of the product.
  int Run(const Gemm& g) {
    blas_->Run(runtime_->stream(), g);
    runtime_->Synchronize();
    return TheLog().ran.back();
  }

  std::unique_ptr<Runtime> runtime_ = testing_util::MakeTestRuntime(0);
  std::vector<float> operand_ = std::vector<float>(kLarge * kLarge);
  std::vector<float> c_ = std::vector<float>(kLarge * kLarge);
  std::unique_ptr<Blas> blas_;
};

TEST_F(DeviceBlasChoice, IsTheFastestOfALargeProduct) {
  EXPECT_EQ(Run(ProductOf(kLarge)), 1);
  EXPECT_EQ(Run(ProductOf(kLarge)), 1);
  EXPECT_EQ(TheLog().asked.size(), 1u);
  EXPECT_EQ(Run(ProductOf(64)), 0);
}

// Whoever asked first.
TEST_F(DeviceBlasChoice, IsTheFirstWhereProductsAreNotTimed) {
  Gemm g = ProductOf(kLarge);
  for (const bool deterministic : {false, true, false, true}) {
    g.deterministic = deterministic;
    EXPECT_EQ(Run(g), deterministic ? 0 : 1);
  }
  ASSERT_EQ(TheLog().asked.size(), 2u);
  EXPECT_GT(TheLog().asked[0], 1);
  EXPECT_EQ(TheLog().asked[1], 1);
}

TEST_F(DeviceBlasChoice, AddsToTheResultOnce) {
  c_[0] = 5;
  EXPECT_EQ(Run(ProductOf(kLarge, 1)), 1);
  EXPECT_EQ(c_[0], 6);
}

TEST_F(DeviceBlasChoice, IsTheFirstWithoutRoomForTrials) {
  gpu_host::cuda_options.memory_limit = 16;
  c_[0] = 5;
  EXPECT_EQ(Run(ProductOf(kLarge, 1)), 0);
  EXPECT_EQ(c_[0], 6);
}

// The trials would be captured, and a wait for them is none of the device's.
TEST_F(DeviceBlasChoice, IsNotTimedInACapture) {
  const auto capture = [&](std::int64_t size) {
    return runtime_->Capture([&](Stream stream) { blas_->Run(stream, ProductOf(size)); }, nullptr);
  };
  const Graph first = capture(kLarge);
  ASSERT_NE(first, nullptr);
  runtime_->Launch(first);
  runtime_->Synchronize();
  EXPECT_EQ(TheLog().ran, std::vector<int>{0});
  // The first product of the shape that is launched by itself is timed, and later captures have
  // the algorithm.
  EXPECT_EQ(Run(ProductOf(kLarge)), 1);
  const Graph second = capture(kLarge);
  ASSERT_NE(second, nullptr);
  TheLog().ran.clear();
  runtime_->Launch(second);
  runtime_->Synchronize();
  EXPECT_EQ(TheLog().ran, std::vector<int>{1});
}

TEST_F(DeviceBlasChoice, HasAnAlgorithm) {
  TheLog().times = {-1, 3, -1, 2};
  EXPECT_EQ(Run(ProductOf(kLarge)), 3);
  TheLog().times = {-1};
  EXPECT_THROW(Run(ProductOf(kLarge - 8)), Error);
}

// The backends of a device run on several threads, and share what is known of shapes.
TEST(DeviceBlasThreads, AskOneAfterTheOther) {
  Cublas library = gpu_host::HostCublas();
  static std::atomic<int> inside = 0;
  library.heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                         cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                         cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t*,
                         int* found) {
    EXPECT_EQ(++inside, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --inside;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  };
  library.matmul = [](auto...) { return CUBLAS_STATUS_SUCCESS; };
  static char workspace;
  const std::unique_ptr<Blas> blas = MakeBlasOf(library, {&workspace, [](void*) {}});
  std::vector<float> values(64 * 64);
  std::vector<std::thread> threads;
  for (std::int64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      const MatrixView m = {values.data(), DType::kF32, 8 * t, 8 * t, 64};
      blas->Run(nullptr, {.a = m, .b = m, .c = m});
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace qlora::cuda
