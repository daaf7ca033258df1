// The functions of cuDNN that are used, and its descriptors: objects with attributes, of which an
// operation graph and a plan to run it are made.
#ifndef QLORA_BACKEND_CUDA_DEVICE_CUDNN_H_
#define QLORA_BACKEND_CUDA_DEVICE_CUDNN_H_

#include <cudnn.h>
#include <cudnn_backend.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace qlora::cuda {

struct Cudnn {
  std::string file = {};    // that was loaded
  std::size_t version = 0;  // 91900 is 9.19.0
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  // Errors: OutOfMemory, or Runtime; with the text of the library.
  void Check(const char* what, cudnnStatus_t status) const;
  // "9.19.0"
  std::string VersionText() const;
  // True where plans may have sequences without rows behind the last: NVIDIA supports such packed
  // batches from 9.25 on.
  bool TakesEmptySequences() const { return version >= 92500; }
};

// The library stays loaded. problem: why it cannot be used, or empty.
struct CudnnSearch {
  Cudnn cudnn;
  std::string problem;
};
CudnnSearch FindCudnn();

using Descriptor = cudnnBackendDescriptor_t;  // void*

constexpr cudnnBackendAttributeType_t TypeOf(bool) { return CUDNN_TYPE_BOOLEAN; }
constexpr cudnnBackendAttributeType_t TypeOf(char) { return CUDNN_TYPE_CHAR; }
constexpr cudnnBackendAttributeType_t TypeOf(std::int64_t) { return CUDNN_TYPE_INT64; }
constexpr cudnnBackendAttributeType_t TypeOf(Descriptor) { return CUDNN_TYPE_BACKEND_DESCRIPTOR; }
constexpr cudnnBackendAttributeType_t TypeOf(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
constexpr cudnnBackendAttributeType_t TypeOf(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
constexpr cudnnBackendAttributeType_t TypeOf(cudnnPointwiseMode_t) {
  return CUDNN_TYPE_POINTWISE_MODE;
}
constexpr cudnnBackendAttributeType_t TypeOf(cudnnReduceTensorOp_t) {
  return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
}
constexpr cudnnBackendAttributeType_t TypeOf(cudnnBackendHeurMode_t) {
  return CUDNN_TYPE_HEUR_MODE;
}

// One row of a table of attributes. Refers to the value.
struct Attribute {
  template <typename T>
  Attribute(cudnnBackendAttributeName_t of, const T& value)
      : name(of), type(TypeOf(T{})), count(1), data(&value) {}
  template <typename T>
  Attribute(cudnnBackendAttributeName_t of, const std::vector<T>& values)
      : name(of), type(TypeOf(T{})), count(std::ssize(values)), data(values.data()) {}

  // Addresses of operands, which have the type of descriptors.
  Attribute(cudnnBackendAttributeName_t of, std::int64_t addresses, void* const* first)
      : name(of), type(CUDNN_TYPE_VOID_PTR), count(addresses), data(first) {}

  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  const void* data;
};

// Makes descriptors and owns them.
class Descriptors {
 public:
  explicit Descriptors(const Cudnn& cudnn) : cudnn_(cudnn) {}
  ~Descriptors();
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  // Attributes whose only value is a null descriptor are left out. Errors: Runtime.
  Descriptor Make(cudnnBackendDescriptorType_t type, std::initializer_list<Attribute> attributes);
  // One without attributes, for the library to fill.
  Descriptor MakeEmpty(cudnnBackendDescriptorType_t type);
  const Cudnn& cudnn() const { return cudnn_; }

 private:
  const Cudnn& cudnn_;
  std::vector<Descriptor> made_;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_CUDNN_H_
