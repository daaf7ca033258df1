// The functions of cuBLASLt that are used. device/blas.cc calls them; tests put others in their
// place.
#ifndef QLORA_BACKEND_CUDA_DEVICE_CUBLAS_H_
#define QLORA_BACKEND_CUDA_DEVICE_CUBLAS_H_

#include <cublasLt.h>

#include <memory>
#include <string>

#include "backend/cuda/blas.h"

namespace qlora::cuda {

struct Cublas {
  std::string file = {};    // that was loaded
  std::size_t version = 0;  // 130100 is 13.1.0
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};

// Opens the library. Errors: Runtime where it or one of the functions is not found.
Cublas LoadCublas();

// workspace: kBlasBytes of device memory, or null, and how it is given back.
using BlasWorkspace = std::unique_ptr<void, void (*)(void*)>;
// Errors: OutOfMemory; Runtime for calls that the library refuses.
std::unique_ptr<Blas> MakeBlasOf(const Cublas& library, BlasWorkspace workspace);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_CUBLAS_H_
