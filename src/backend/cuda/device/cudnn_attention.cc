// Attention of training by cuDNN. Sequences are given as they are: packed, with an offset and a
// length for each. A plan serves all calls with at most as many sequences, and as long ones, as it
// was made for; both numbers are rounded up to a power of two, so that a run makes few plans.
// Sequences that do not fit into the room at once are computed in groups.
#include "backend/cuda/device/cudnn_attention.h"

#include <cuda_runtime_api.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cuda/device/cudnn_groups.h"
#include "backend/cuda/device/device_runtime.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

class CudnnAttention final : public AttentionLibrary {
 public:
  CudnnAttention(const Cudnn& cudnn, bool required) : cudnn_(cudnn), required_(required) {
    cudnn_.Check("cudnnCreate, which needs all libraries of cuDNN", cudnn_.create(&target_.handle));
    void* numbers = nullptr;
    if (cudaMalloc(&numbers, 2 * kNumbersBytes) != cudaSuccess) {
      cudaGetLastError();  // not an error of the next call
      cudnn_.destroy(target_.handle);
      throw Error(ErrorCode::kOutOfMemory, "cuda: no memory for the offsets of cuDNN");
    }
    int reads_host = 0;
    cudaDeviceGetAttribute(&reads_host, cudaDevAttrPageableMemoryAccess, 0);
    reads_host_ = reads_host != 0;
    for (std::int64_t i = 0; i < 2; ++i) {
      numbers_[i].device = static_cast<std::byte*>(numbers) + i * kNumbersBytes;
    }
  }
  ~CudnnAttention() override {
    // Before the handle, with which they were made.
    plans_.clear();
    cudaFree(numbers_[0].device);
    cudnn_.destroy(target_.handle);
  }

  bool Run(Stream stream, const ops::Attention& op, std::span<std::byte> room) override {
    return RunAny(stream, op, room);
  }
  bool Run(Stream stream, const ops::AttentionBackward& op, std::span<std::byte> room) override {
    return RunAny(stream, op, room);
  }

 private:
  // The numbers of a pass on the device, which all layers share.
  struct Numbers {
    std::byte* device = nullptr;
    std::vector<std::int32_t> host;
  };
  // A plan, or the reason why there is no plan.
  struct Planned {
    std::unique_ptr<AttentionPlan> plan;
    std::string problem;
  };
  template <typename AnyAttention>
  bool RunAny(Stream stream, const AnyAttention& op, std::span<std::byte> room) {
    // The backends of a device may run on several threads; a handle of cuDNN serves one at a time,
    // and the numbers of an op must stay until its plans are queued.
    const std::lock_guard lock(mutex_);
    const std::string problem = Try(stream, op, room);
    if (problem.empty()) return true;
    // The caller then runs its own kernels: an op that the library does not take is no error.
    if (!required_) return false;
    ThrowRuntime(
        "cuda: QLORA_CUDA_ATTENTION is cudnn, and cuDNN does not run the {} of attention ({} rows, "
        "{} heads of {}): {}",
        std::is_same_v<AnyAttention, ops::Attention> ? "forward pass" : "gradient", op.q.rows,
        op.shape.heads, op.shape.head_dim, problem);
  }

  // Queues the op; or says why not, and has queued nothing.
  template <typename AnyAttention>
  std::string Try(Stream stream, const AnyAttention& op, std::span<std::byte> room) {
    Numbers& numbers = numbers_[std::is_same_v<AnyAttention, ops::AttentionBackward> ? 1 : 0];
    CudnnGroups made = GroupsOf(op, room, cudnn_.TakesEmptySequences(), numbers.device);
    if (!made.problem.empty()) return made.problem;
    for (const CudnnGroup& group : made.groups) {
      const Planned& planned = PlanFor(group.shape);
      if (planned.plan == nullptr) return planned.problem;
      if (planned.plan->workspace() > std::ssize(group.rest)) {
        return "the workspace is too small for a plan of cuDNN";
      }
    }
    Upload(stream, numbers, std::move(made.numbers));
    cudnn_.Check("cudnnSetStream",
                 cudnn_.set_stream(target_.handle, static_cast<cudaStream_t>(stream)));
    for (const CudnnGroup& group : made.groups) RunPlan(group, op.shape);
    return "";
  }

  void RunPlan(const CudnnGroup& group, const AttentionShape& attention) {
    std::vector<CudnnOperand> operands = group.operands;
    const float one = 1;
    // exp(-infinity) = 0: hidden keys have no part in sums, and no gradient.
    const float hidden = -std::numeric_limits<float>::infinity();
    const auto window = static_cast<float>(attention.window);
    operands.push_back({kScale, &attention.scale});
    if (group.shape.backward) operands.push_back({kOne, &one});
    if (group.shape.windowed) operands.push_back({kWindow, &window});
    for (const std::int64_t id : {kHiddenPadding, kHiddenFuture}) operands.push_back({id, &hidden});
    if (group.shape.windowed) operands.push_back({kHiddenPast, &hidden});

    std::vector<std::int64_t> ids;
    std::vector<void*> data;
    for (const CudnnOperand& operand : operands) {
      ids.push_back(operand.id);
      data.push_back(const_cast<void*>(operand.data));
    }
    PlanFor(group.shape).plan->Run(target_.handle, ids, data, group.rest.data());
  }

  // Looks for a plan of a shape once. Errors: OutOfMemory.
  const Planned& PlanFor(const AttentionPlanShape& shape) {
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return known->second;
    Planned planned;
    try {
      planned.plan = std::make_unique<AttentionPlan>(cudnn_, target_, shape);
    } catch (const Error& error) {
      cudaGetLastError();  // not an error of the next call
      // Too little memory says nothing of the shape: a later run may have a plan for it.
      if (error.code() == ErrorCode::kOutOfMemory) throw;
      planned.problem = error.what();
    }
    return plans_.emplace(shape, std::move(planned)).first->second;
  }

  // All layers of a pass have the same sequences and strides: the first one copies, the others
  // compare. Plans queued before have read the old numbers when the stream comes to the copy.
  void Upload(Stream stream, Numbers& numbers, std::vector<std::int32_t> host) const {
    if (host == numbers.host) return;
    const auto queue = static_cast<cudaStream_t>(stream);
    numbers.host.clear();  // until the copy is known to have succeeded
    CheckCuda("copy the offsets of attention",
              cudaMemcpyAsync(numbers.device, host.data(), host.size() * sizeof(std::int32_t),
                              cudaMemcpyHostToDevice, queue));
    // Otherwise the numbers are copied to a staging buffer before the call returns (CopyIn).
    if (reads_host_) CheckCuda("wait for the device", cudaStreamSynchronize(queue));
    numbers.host = std::move(host);
  }

  const Cudnn cudnn_;
  const bool required_;
  std::mutex mutex_;
  AttentionTarget target_;
  bool reads_host_ = false;         // the device reads memory of the host that is not locked
  std::array<Numbers, 2> numbers_;  // forward, backward
  std::map<AttentionPlanShape, Planned> plans_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> MakeCudnnAttention(const Cudnn& cudnn, bool required) {
  return std::make_unique<CudnnAttention>(cudnn, required);
}

}  // namespace qlora::cuda
