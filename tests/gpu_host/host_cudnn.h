// cuDNN on the host: descriptors keep what they are given, and a plan that runs computes its graph
// in float64 (graph_interpreter.h).
#ifndef QLORA_TESTS_GPU_HOST_HOST_CUDNN_H_
#define QLORA_TESTS_GPU_HOST_HOST_CUDNN_H_

#include <cstddef>
#include <cstring>
#include <map>
#include <vector>

#include "backend/cuda/device/attention_plan.h"

namespace gpu_host {

// A descriptor: the bytes of its attributes.
struct Node {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<std::byte>> attributes;

  // The values of an attribute, none where it was not set.
  template <typename T>
  std::vector<T> All(int name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(int name, T missing = {}) const {
    const auto found = attributes.find(name);
    if (found != attributes.end()) std::memcpy(&missing, found->second.data(), sizeof(T));
    return missing;
  }
  // The descriptor that an attribute names, or null.
  const Node* Ref(int name) const { return static_cast<const Node*>(One<void*>(name)); }
};

// A library of the newest version that is told apart. It needs no device: the handle with which a
// plan runs is HandleOf(the shape of the plan).
qlora::cuda::Cudnn HostCudnn();
cudnnHandle_t HandleOf(const qlora::cuda::AttentionPlanShape& shape);

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_HOST_CUDNN_H_
