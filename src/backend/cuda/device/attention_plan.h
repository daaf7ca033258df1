// Attention of packed sequences and its gradient as operation graphs of cuDNN, and plans to run
// them.
#ifndef QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PLAN_H_
#define QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PLAN_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device/cudnn.h"

namespace qlora::cuda {

// Places where operands of a plan are found when it runs: unique ids of cuDNN. kOffsets + an
// operand: where its sequences begin, in elements.
enum AttentionOperand : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDo,
  kDq,
  kDk,
  kDv,
  kDelta,      // d_o . o, with the layout of lse
  kDqSum,      // float32, with the layout of dq
  kDkHeads,    // bfloat16: of each query head, with rows `group` times as long as rows of dk
  kDvHeads,    // likewise
  kQueryRows,  // int32: rows of each sequence
  kKeyRows,    // likewise
  kScale,      // float32 in host memory, as those below
  kOne,
  kWindow,
  kHiddenPadding,  // -inf, the score of a key that a row does not see
  kHiddenFuture,
  kHiddenPast,
  kOffsets = 100,
};

// The shape that a plan depends on. Calls with fewer and shorter sequences use the same plan.
struct AttentionPlanShape {
  bool backward = false;
  bool windowed = false;
  std::int64_t sequences = 0;
  std::int64_t length = 0;  // of the longest sequence
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  // Elements between rows.
  std::int64_t q = 0, k = 0, v = 0, o = 0, lse = 0, d_o = 0, dq = 0, dk = 0, dv = 0;
  auto operator<=>(const AttentionPlanShape&) const = default;

  std::int64_t group() const { return heads / kv_heads; }
};

// For a device, handle is a handle of cuDNN. For the description of a device, on machines without
// it, handle is null.
struct AttentionTarget {
  cudnnHandle_t handle = nullptr;
  std::string device_json = {};
};

class AttentionPlan {
 public:
  // Takes about a second. Errors: Runtime, where cuDNN has no kernel for the shape.
  AttentionPlan(const Cudnn& cudnn, const AttentionTarget& target, const AttentionPlanShape& shape);

  std::int64_t workspace() const { return workspace_; }  // bytes
  // Queues the plan. data[i] belongs to operand ids[i].
  void Run(cudnnHandle_t handle, const std::vector<std::int64_t>& ids,
           const std::vector<void*>& data, void* workspace) const;

 private:
  Descriptors made_;
  Descriptor plan_ = nullptr;
  std::int64_t workspace_ = 0;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PLAN_H_
