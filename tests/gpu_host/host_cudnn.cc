#include "gpu_host/host_cudnn.h"

#include "gpu_host/graph_interpreter.h"

namespace gpu_host {
namespace {

std::size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_CHAR:
      return sizeof(char);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:  // enumerations
      return 4;
  }
}

cudnnStatus_t Set(cudnnBackendDescriptor_t node, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, std::int64_t count, const void* data) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const std::size_t size = static_cast<std::size_t>(count) * BytesOf(type);
  static_cast<Node*>(node)->attributes[name] = {bytes, bytes + size};
  return CUDNN_STATUS_SUCCESS;
}

// One configuration for every graph, which remembers who was asked for it; plans need no workspace.
cudnnStatus_t Get(cudnnBackendDescriptor_t const node, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t, std::int64_t, std::int64_t* count, void* out) {
  *count = 1;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    Node* configuration = nullptr;
    std::memcpy(&configuration, out, sizeof(configuration));
    return Set(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &node);
  }
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) return CUDNN_STATUS_NOT_SUPPORTED;
  const std::int64_t none = 0;
  std::memcpy(out, &none, sizeof(none));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t operands) {
  const Node* configuration =
      static_cast<Node*>(plan)->Ref(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Node* choice = configuration->Ref(CUDNN_ATTR_ENGINECFG_ENGINE);
  const auto* pack = static_cast<Node*>(operands);
  const auto ids = pack->All<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto places = pack->All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<std::int64_t, void*> data;
  for (std::size_t i = 0; i < ids.size(); ++i) data[ids[i]] = places[i];
  RunGraph(*choice->Ref(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), data,
           *reinterpret_cast<const qlora::cuda::AttentionPlanShape*>(handle));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnHandle_t HandleOf(const qlora::cuda::AttentionPlanShape& shape) {
  return reinterpret_cast<cudnnHandle_t>(const_cast<qlora::cuda::AttentionPlanShape*>(&shape));
}

qlora::cuda::Cudnn HostCudnn() {
  qlora::cuda::Cudnn library;
  library.version = 92500;
  library.last_error = [](char* text, std::size_t) { *text = 0; };
  library.create_descriptor = [](cudnnBackendDescriptorType_t type,
                                 cudnnBackendDescriptor_t* made) {
    *made = new Node{type, {}};
    return CUDNN_STATUS_SUCCESS;
  };
  library.destroy_descriptor = [](cudnnBackendDescriptor_t node) {
    delete static_cast<Node*>(node);
    return CUDNN_STATUS_SUCCESS;
  };
  library.set = Set;
  library.get = Get;
  library.finalize = [](cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; };
  library.execute = Execute;
  return library;
}

}  // namespace gpu_host
