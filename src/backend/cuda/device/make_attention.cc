// The choice between cuDNN and own kernels of attention.
#include <cuda_runtime_api.h>

#include "backend/cuda/device/attention_plan.h"
#include "backend/cuda/device/attention_preference.h"
#include "backend/cuda/device/cudnn_attention.h"
#include "backend/cuda/device/device_runtime.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

// Why cuDNN is not looked for, or empty. Packed log-sum-exps exist for these architectures alone.
std::string ReasonForOwnKernels(AttentionPreference preference) {
  if (preference == AttentionPreference::kOwn) return "QLORA_CUDA_ATTENTION is own";
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) {
    cudaGetLastError();  // not an error of the next call
    return "there is no device";
  }
  if (major == 9 || major == 10) return "";
  return fmt::format("cuDNN is used with compute capability 9.x and 10.x, found {}.x", major);
}

// The library is opened only where it is used.
CudnnSearch FindUsable(AttentionPreference preference) {
  const std::string reason = ReasonForOwnKernels(preference);
  return reason.empty() ? FindCudnn() : CudnnSearch{.cudnn = {}, .problem = reason};
}

// Makes plans for one sequence of 2048 tokens of Llama-3-8B, which need all libraries of cuDNN and
// the compiler of CUDA (nvrtc). Errors: as AttentionPlan.
void TryPlans(const Cudnn& cudnn) {
  struct Handle {
    explicit Handle(const Cudnn& c) : cudnn(c) { c.Check("cudnnCreate", c.create(&value)); }
    ~Handle() { cudnn.destroy(value); }
    const Cudnn& cudnn;
    cudnnHandle_t value = nullptr;
  };
  const Handle handle(cudnn);
  AttentionPlanShape shape = {.sequences = 1,
                              .length = 2048,
                              .heads = 32,
                              .kv_heads = 8,
                              .head_dim = 128,
                              .q = 4096,
                              .k = 1024,
                              .v = 1024,
                              .o = 4096,
                              .lse = 32};
  const AttentionPlan forward(cudnn, {.handle = handle.value}, shape);
  shape.backward = true;
  shape.d_o = shape.dq = 4096;
  shape.dk = shape.dv = 1024;
  const AttentionPlan backward(cudnn, {.handle = handle.value}, shape);
}

}  // namespace

std::unique_ptr<AttentionLibrary> MakeDeviceAttention() {
  const AttentionPreference preference = PreferenceOfUser();
  const bool required = preference == AttentionPreference::kCudnn;
  const CudnnSearch found = FindUsable(preference);
  if (!found.problem.empty()) {
    if (required) ThrowUnusedCudnn(found.problem);
    return nullptr;
  }
  try {
    return MakeCudnnAttention(found.cudnn, required);
  } catch (const Error&) {
    if (required) throw;
    cudaGetLastError();  // not an error of the next call
    return nullptr;
  }
}

std::string DescribeAttention() {
  const AttentionPreference preference = PreferenceOfUser();
  const CudnnSearch found = FindUsable(preference);
  std::string problem = found.problem;
  const std::string name =
      fmt::format("cuDNN {} ({})", found.cudnn.VersionText(), found.cudnn.file);
  try {
    if (problem.empty()) TryPlans(found.cudnn);
  } catch (const Error& error) {
    cudaGetLastError();  // not an error of the next call
    problem = fmt::format("{}: {}", name, error.what());
  }
  if (problem.empty()) {
    return name + (preference == AttentionPreference::kCudnn
                       ? ", required for training in bfloat16"
                       : " for training in bfloat16, own kernels elsewhere");
  }
  if (preference == AttentionPreference::kCudnn) ThrowUnusedCudnn(problem);
  return "own kernels: " + problem;
}

}  // namespace qlora::cuda
