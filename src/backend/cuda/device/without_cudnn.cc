// In place of cuDNN in a build without its headers.
#include "backend/cuda/device/attention_preference.h"
#include "backend/cuda/device/device_runtime.h"

namespace qlora::cuda {

std::unique_ptr<AttentionLibrary> MakeDeviceAttention() {
  if (PreferenceOfUser() == AttentionPreference::kCudnn)
    ThrowUnusedCudnn("this program was built without it");
  return nullptr;
}

std::string DescribeAttention() {
  MakeDeviceAttention();
  return "own kernels: this program was built without cuDNN";
}

}  // namespace qlora::cuda
