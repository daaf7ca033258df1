#include "backend/cuda/device/attention_preference.h"

#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace qlora::cuda {

AttentionPreference PreferenceOfUser() {
  const char* value = std::getenv("QLORA_CUDA_ATTENTION");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty()) return AttentionPreference::kBest;
  if (name == "cudnn") return AttentionPreference::kCudnn;
  if (name == "own") return AttentionPreference::kOwn;
  ThrowInvalidInput("QLORA_CUDA_ATTENTION: expected cudnn or own, found '{}'", name);
}

void ThrowUnusedCudnn(const std::string& problem) {
  ThrowRuntime("device cuda: QLORA_CUDA_ATTENTION is cudnn, which cannot be used: {}", problem);
}

}  // namespace qlora::cuda
