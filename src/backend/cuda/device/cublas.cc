#include "backend/cuda/device/cublas.h"

#include "backend/cuda/device/dynamic_library.h"
#include "base/check.h"

namespace qlora::cuda {

Cublas LoadCublas() {
  // The major version is the version of the ABI. The library is opened here, not linked, so that a
  // program with CUDA starts on machines without it.
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  const OpenedLibrary opened = OpenLibrary(name);
  if (opened.handle == nullptr) {
    ThrowRuntime(
        "device cuda: expected the library {} of the CUDA toolkit or of a Python package of "
        "NVIDIA; install it or add its folder to LD_LIBRARY_PATH ({})",
        name, opened.problem);
  }
  Cublas l = {.file = opened.file};
  const auto resolve = [&](const char* function_name, auto& function) {
    if (!Resolve(opened.handle, function_name, function)) {
      ThrowRuntime("device cuda: {} has no function {}", opened.file, function_name);
    }
  };
  resolve("cublasLtCreate", l.create);
  resolve("cublasLtDestroy", l.destroy);
  resolve("cublasLtGetStatusString", l.status_string);
  resolve("cublasLtMatmulDescCreate", l.desc_create);
  resolve("cublasLtMatmulDescDestroy", l.desc_destroy);
  resolve("cublasLtMatmulDescSetAttribute", l.desc_set);
  resolve("cublasLtMatrixLayoutCreate", l.layout_create);
  resolve("cublasLtMatrixLayoutDestroy", l.layout_destroy);
  resolve("cublasLtMatmulPreferenceCreate", l.preference_create);
  resolve("cublasLtMatmulPreferenceDestroy", l.preference_destroy);
  resolve("cublasLtMatmulPreferenceSetAttribute", l.preference_set);
  resolve("cublasLtMatmulAlgoGetHeuristic", l.heuristic);
  resolve("cublasLtMatmul", l.matmul);
  decltype(&cublasLtGetVersion) version = nullptr;
  resolve("cublasLtGetVersion", version);
  l.version = version();
  return l;
}

}  // namespace qlora::cuda
