// The numbers of sequences that cuDNN's plans read: they are on the device when a plan runs,
// however late that is. Plans run on the model of a GPU and read nothing but the lengths of
// sequences.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/device/cudnn_attention.h"
#include "backend/cuda/device/cudnn_groups.h"
#include "cuda/test_device.h"
#include "gpu_host/host_cuda.h"
#include "gpu_host/host_cudnn.h"
#include "gpu_host/model.h"
#include "qlora/error.h"

namespace qlora::cuda {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kHeadDim = 16;

using Lengths = std::vector<std::int32_t>;

// The lengths that each plan has read, without those of sequences without rows.
std::vector<Lengths>& Read() {
  static std::vector<Lengths> read;
  return read;
}

cudnnStatus_t QueuePlan(cudnnHandle_t, cudnnBackendDescriptor_t,
                        cudnnBackendDescriptor_t operands) {
  const auto* pack = static_cast<gpu_host::Node*>(operands);
  const auto ids = pack->All<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto places = pack->All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto* rows =
      static_cast<const std::int32_t*>(places[std::ranges::find(ids, kQueryRows) - ids.begin()]);
  gpu_host::Enqueue([rows] {
    Lengths lengths;
    for (const std::int32_t* n = rows; n < rows + 4; ++n) {
      if (*n > 0) lengths.push_back(*n);
    }
    Read().push_back(lengths);
  });
  return CUDNN_STATUS_SUCCESS;
}

class DeviceCudnnAttention : public testing::Test {
 protected:
  DeviceCudnnAttention() { Read().clear(); }
  ~DeviceCudnnAttention() override { gpu_host::cuda_options = {}; }

  // After the options are set.
  void Make() {
    attention_ = nullptr;
    runtime_ = nullptr;
    runtime_ = testing_util::MakeTestRuntime(0);
    Cudnn library = gpu_host::HostCudnn();
    library.create = [](cudnnHandle_t* handle) {
      static char it;
      *handle = reinterpret_cast<cudnnHandle_t>(&it);
      return CUDNN_STATUS_SUCCESS;
    };
    library.destroy = [](cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; };
    library.set_stream = [](cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; };
    library.execute = QueuePlan;
    attention_ = MakeCudnnAttention(library, true);
  }
  // An op on addresses that nothing reads, with four sequences.
  void Run(const Lengths& lengths) {
    std::vector<AttentionSpan> spans;
    std::int64_t rows = 0;
    for (const std::int32_t n : lengths) {
      spans.push_back({rows, n, rows, n});
      rows += n;
    }
    const std::int64_t cols = kHeads * kHeadDim;
    const auto region = [&](std::int64_t number) {
      return MatrixView{reinterpret_cast<std::byte*>(number << 32), DType::kBF16, rows, cols, cols};
    };
    const AttentionShape shape = {
        .heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim, .scale = 1};
    const MatrixView lse = {reinterpret_cast<std::byte*>(std::int64_t{5} << 32), DType::kF32, rows,
                            kHeads, kHeads};
    attention_->Run(runtime_->stream(),
                    ops::Attention{shape, spans, region(1), region(2), region(3), region(4), lse},
                    room_);
  }

  const Lengths a_ = {100, 90, 80, 70};
  const Lengths b_ = {70, 80, 90, 100};
  std::vector<std::byte> room_ = std::vector<std::byte>(std::size_t{6} << 20);
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<AttentionLibrary> attention_;
};

TEST_F(DeviceCudnnAttention, ReadsTheNumbersOfItsOp) {
  Make();
  for (const Lengths& lengths : {a_, a_, b_, a_}) Run(lengths);
  EXPECT_TRUE(Read().empty());
  runtime_->Synchronize();
  EXPECT_EQ(Read(), (std::vector<Lengths>{a_, a_, b_, a_}));
}

// Where the device takes the numbers from memory of the host by itself, an op waits until it has.
TEST_F(DeviceCudnnAttention, WaitsWhereTheDeviceReadsTheHost) {
  for (const bool reads_host : {false, true}) {
    gpu_host::cuda_options.reads_host = reads_host;
    Make();
    const std::int64_t waits = gpu_host::Waits();
    Run(a_);
    EXPECT_EQ(gpu_host::Waits() - waits, reads_host ? 1 : 0);
    Run(a_);  // with the numbers that are there
    EXPECT_EQ(gpu_host::Waits() - waits, reads_host ? 1 : 0);
    runtime_->Synchronize();
  }
}

// Which may have written anything: neither its numbers nor those before it are there.
TEST_F(DeviceCudnnAttention, CopiesAgainAfterACopyThatFailed) {
  Make();
  for (const Lengths& next : {b_, a_}) {
    Run(a_);
    gpu_host::cuda_options.failing_copies = 1;
    EXPECT_THROW(Run(b_), Error);
    cudaGetLastError();
    Run(next);
  }
  runtime_->Synchronize();
  EXPECT_EQ(Read(), (std::vector<Lengths>{a_, b_, a_, a_}));
}

}  // namespace
}  // namespace qlora::cuda
