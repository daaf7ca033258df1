#include "backend/cuda/device/attention_wish.h"

#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace qlora::cuda {

AttentionWish WishOfUser() {
  const char* value = std::getenv("QLORA_CUDA_ATTENTION");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty()) return AttentionWish::kBest;
  if (name == "cudnn") return AttentionWish::kCudnn;
  if (name == "own") return AttentionWish::kOwn;
  ThrowInvalidInput("QLORA_CUDA_ATTENTION: expected cudnn or own, found '{}'", name);
}

void ThrowUnusedCudnn(const std::string& problem) {
  ThrowRuntime("device cuda: QLORA_CUDA_ATTENTION is cudnn, which cannot be used: {}", problem);
}

}  // namespace qlora::cuda
