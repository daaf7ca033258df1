// In place of the CUDA backend in a build without the CUDA toolkit.
#include "backend/backend.h"
#include "base/check.h"

namespace qlora {

std::unique_ptr<Backend> MakeCudaBackend(Context&, DType) {
  ThrowInvalidInput(
      "device cuda: this program was built without CUDA; build with -DQLORA_CUDA=ON, or run on the "
      "CPU with device cpu");
}

}  // namespace qlora
