// In place of cuDNN in a build without its headers.
#include "backend/cuda/device/device_runtime.h"

namespace qlora::cuda {

std::unique_ptr<AttentionLibrary> MakeDeviceAttention() { return nullptr; }

std::string DescribeAttention() { return "own kernels: this program was built without cuDNN"; }

}  // namespace qlora::cuda
