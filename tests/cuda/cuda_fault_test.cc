// A device that fails in the middle of a run: the error, and what is left of the run.
#include <gmock/gmock.h>

#include <limits>

#include "backend/context_on.h"
#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "base/file.h"
#include "cuda/test_device.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// Counts of calls until a runtime fails.
struct Faults {
  // Downloads and waits until the device is lost: from then on all of them fail.
  int waits_left = std::numeric_limits<int>::max();
  int allocations_left = std::numeric_limits<int>::max();
  int waits = 0;
};

// Passes every call on to another runtime until it fails.
class FaultyRuntime final : public cuda::Runtime {
 public:
  FaultyRuntime(std::unique_ptr<cuda::Runtime> runtime, Faults& faults)
      : runtime_(std::move(runtime)), faults_(faults) {}

  cuda::Stream stream() const override { return runtime_->stream(); }
  cuda::Stream copies() const override { return runtime_->copies(); }
  cuda::Event Record(cuda::Stream stream) override { return runtime_->Record(stream); }
  void OrderBehind(cuda::Stream stream, const cuda::Event& event) override {
    runtime_->OrderBehind(stream, event);
  }
  void WaitFor(const cuda::Event& event) override {
    CountWait();
    runtime_->WaitFor(event);
  }
  cuda::Graph Capture(const std::function<void(cuda::Stream)>& queue, cuda::Graph last) override {
    return runtime_->Capture(queue, std::move(last));
  }
  void Launch(const cuda::Graph& graph) override { runtime_->Launch(graph); }
  std::byte* Allocate(std::size_t bytes) override {
    if (faults_.allocations_left-- <= 0) {
      throw Error(ErrorCode::kOutOfMemory, "cuda: cannot allocate on the test's device");
    }
    return runtime_->Allocate(bytes);
  }
  void Free(std::byte* data) noexcept override { runtime_->Free(data); }
  int Multiprocessors() const override { return runtime_->Multiprocessors(); }
  std::size_t Available() const override { return runtime_->Available(); }
  std::byte* AllocateLocked(std::size_t bytes) override { return runtime_->AllocateLocked(bytes); }
  void FreeLocked(std::byte* data) noexcept override { runtime_->FreeLocked(data); }
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    runtime_->CopyIn(device, host, bytes);
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    CountWait();
    runtime_->CopyOut(host, device, bytes);
  }
  void QueueCopyIn(void* device, const void* locked, std::size_t bytes) override {
    runtime_->QueueCopyIn(device, locked, bytes);
  }
  void QueueCopyOut(void* locked, const void* device, std::size_t bytes) override {
    runtime_->QueueCopyOut(locked, device, bytes);
  }
  void Clear(void* device, std::size_t bytes) override { runtime_->Clear(device, bytes); }
  void Synchronize() override {
    CountWait();
    runtime_->Synchronize();
  }

 private:
  void CountWait() {
    ++faults_.waits;
    if (faults_.waits_left-- <= 0) ThrowRuntime("cuda: wait for the device: the device is lost");
  }
  std::unique_ptr<cuda::Runtime> runtime_;
  Faults& faults_;
};

class CudaFault : public TinyRunTest {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = TinyRunTest::Options(name);
    options.compute_dtype = "float32";
    options.data.reading.max_length = 32;
    options.lora_dropout = 0;
    options.gradient_accumulation_steps = 1;
    options.max_steps = 6;
    options.save_steps = 2;
    return options;
  }
  void Run(const TrainOptions& options) {
    const std::shared_ptr<cuda::Device> device = std::make_shared<cuda::Device>(
        std::make_unique<FaultyRuntime>(testing_util::MakeTestRuntime(3), faults_),
        testing_util::MakeTestBlas());
    ContextOn context(BackendsBy([device](Context& on, DType compute) {
                        return cuda::MakeBackendOn(on, device, compute);
                      }),
                      1);
    TrainObserver observer;
    PlanAndTrain(context, options, observer);
  }
  // The run fails.
  void ExpectError(const TrainOptions& options, ErrorCode code, const std::string& text) {
    try {
      Run(options);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
    faults_ = {};
  }

  Faults faults_;
};

TEST_F(CudaFault, ALostDeviceLeavesTheLastCheckpoint) {
  Run(Options("whole"));
  const int waits = faults_.waits;
  ASSERT_GT(waits, 12);
  // Most waits are those of steps and of checkpoints, so these are in the later half of the run.
  for (const int before : {waits / 2, waits * 2 / 3, waits - 2}) {
    const std::string name = "lost" + std::to_string(before);
    TrainOptions options = Options(name);
    faults_ = {.waits_left = before};
    ExpectError(options, ErrorCode::kRuntime, "the device is lost");
    EXPECT_TRUE(fs::exists(root_ / name / "checkpoint-2")) << before;
    EXPECT_FALSE(fs::exists(root_ / name / "adapter_model.safetensors")) << before;
    options.resume_from_checkpoint = "auto";
    Run(options);
    EXPECT_TRUE(Adapter(name) == Adapter("whole")) << before;
  }
}

TEST_F(CudaFault, ADeviceThatIsFullIsFoundBeforeTheFirstStep) {
  TrainOptions options = Options("full");
  faults_.allocations_left = 3;
  ExpectError(options, ErrorCode::kOutOfMemory, "cannot allocate on the test's device");
  EXPECT_FALSE(fs::exists(root_ / "full" / "checkpoint-2"));
  options.overwrite_output_dir = true;
  Run(options);
  EXPECT_FALSE(Adapter("full").empty());
}

}  // namespace
}  // namespace qlora
