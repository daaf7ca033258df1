// In place of the CUDA backend in a build without the CUDA toolkit.
#include "backend/backend.h"
#include "base/check.h"

namespace qlora {

CudaReport DescribeCuda() {
  return {.problem = "this program was built without CUDA (-DQLORA_CUDA=ON builds it)"};
}

CudaTrial TryCuda() { return {.problem = DescribeCuda().problem}; }

std::unique_ptr<Backend> MakeCudaBackend(Context&, DType) {
  ThrowInvalidInput("device cuda: {}", DescribeCuda().problem);
}

}  // namespace qlora
