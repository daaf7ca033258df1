// In place of the CUDA backend in a build without the CUDA toolkit.
#include "backend/backend.h"
#include "base/check.h"

namespace qlora {

CudaReport DescribeCuda() {
  return {.problem = "this program was built without CUDA (-DQLORA_CUDA=ON builds it)"};
}

std::string DescribeCudaAttention() { return ""; }

std::unique_ptr<Backend> MakeCudaBackend(Context&, DType) {
  ThrowInvalidInput("device cuda: {}", DescribeCuda().problem);
}

}  // namespace qlora
