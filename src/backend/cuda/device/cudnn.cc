#include "backend/cuda/device/cudnn.h"

#include <array>

#include "backend/cuda/device/dynamic_library.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

// Before, the gradient of packed sequences could read workspace that nothing had written.
constexpr std::size_t kOldest = 91800;

bool ResolveAll(void* handle, Cudnn& l) {
  // All functions are looked up at once: a library that lacks one is refused before a run begins.
  return Resolve(handle, "cudnnCreate", l.create) && Resolve(handle, "cudnnDestroy", l.destroy) &&
         Resolve(handle, "cudnnSetStream", l.set_stream) &&
         Resolve(handle, "cudnnGetLastErrorString", l.last_error) &&
         Resolve(handle, "cudnnBackendCreateDescriptor", l.create_descriptor) &&
         Resolve(handle, "cudnnBackendDestroyDescriptor", l.destroy_descriptor) &&
         Resolve(handle, "cudnnBackendSetAttribute", l.set) &&
         Resolve(handle, "cudnnBackendGetAttribute", l.get) &&
         Resolve(handle, "cudnnBackendFinalize", l.finalize) &&
         Resolve(handle, "cudnnBackendExecute", l.execute);
}

}  // namespace

void Cudnn::Check(const char* what, cudnnStatus_t status) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> text = {};
  last_error(text.data(), text.size());
  const bool memory = status == CUDNN_STATUS_ALLOC_FAILED ||
                      status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  throw Error(
      memory ? ErrorCode::kOutOfMemory : ErrorCode::kRuntime,
      fmt::format("cuda: {}: error {} of cuDNN: {}", what, static_cast<int>(status), text.data()));
}

std::string Cudnn::VersionText() const {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CudnnSearch FindCudnn() {
  const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  const OpenedLibrary opened = OpenLibrary(name);
  CudnnSearch found;
  if (opened.handle == nullptr) {
    found.problem = opened.problem;
    return found;
  }
  found.cudnn.file = opened.file;
  decltype(&cudnnGetVersion) version = nullptr;
  if (!Resolve(opened.handle, "cudnnGetVersion", version) ||
      !ResolveAll(opened.handle, found.cudnn)) {
    found.problem = fmt::format("{} lacks functions", opened.file);
    return found;
  }
  found.cudnn.version = version();
  if (found.cudnn.version < kOldest) {
    found.problem =
        fmt::format("cuDNN {} ({}) is too old, expected {}.{} or newer", found.cudnn.VersionText(),
                    opened.file, kOldest / 10000, kOldest / 100 % 100);
  }
  return found;
}

Descriptors::~Descriptors() {
  for (const Descriptor d : made_) cudnn_.destroy_descriptor(d);
}

Descriptor Descriptors::MakeEmpty(cudnnBackendDescriptorType_t type) {
  Descriptor d = nullptr;
  cudnn_.Check("make a descriptor", cudnn_.create_descriptor(type, &d));
  // Owned before attributes are set, which may throw.
  made_.push_back(d);
  return d;
}

Descriptor Descriptors::Make(cudnnBackendDescriptorType_t type,
                             std::initializer_list<Attribute> attributes) {
  const Descriptor d = MakeEmpty(type);
  for (const Attribute& a : attributes) {
    const bool is_descriptor = a.type == CUDNN_TYPE_BACKEND_DESCRIPTOR && a.count == 1;
    // Lets callers write one table of attributes for operations with and without a third operand.
    if (is_descriptor && *static_cast<const Descriptor*>(a.data) == nullptr) continue;
    cudnn_.Check("set an attribute", cudnn_.set(d, a.name, a.type, a.count, a.data));
  }
  // A finished descriptor can be used by others but not be changed; unsupported combinations
  // of attributes are refused here.
  cudnn_.Check("finish a descriptor", cudnn_.finalize(d));
  return d;
}

}  // namespace qlora::cuda
