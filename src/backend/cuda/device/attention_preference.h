// The environment variable QLORA_CUDA_ATTENTION, as device_runtime.h explains it.
#ifndef QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PREFERENCE_H_
#define QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PREFERENCE_H_

#include <cstdint>
#include <string>

namespace qlora::cuda {

enum class AttentionPreference : std::uint8_t { kBest, kCudnn, kOwn };
// Errors: InvalidInput.
AttentionPreference PreferenceOfUser();
// With a preference for cuDNN, a reason that keeps it from running is an error (Runtime).
[[noreturn]] void ThrowUnusedCudnn(const std::string& problem);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_ATTENTION_PREFERENCE_H_
