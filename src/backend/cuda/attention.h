// Attention and its gradient: own kernels, or those of a library of the GPU.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_H_
#define QLORA_BACKEND_CUDA_ATTENTION_H_

#include "backend/cuda/linear.h"
#include "backend/ops.h"

namespace qlora::cuda {

// A library with kernels for some shapes, types and layouts of attention.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Queues the op and returns true; false where the library has no kernel for it.
  virtual bool Run(Stream stream, const ops::Attention& op) = 0;
  virtual bool Run(Stream stream, const ops::AttentionBackward& op) = 0;
};

// The library, which may be null, is asked first.
void AttentionForward(const Machine& machine, AttentionLibrary* library, const ops::Attention& op);
void AttentionBackward(const Machine& machine, AttentionLibrary* library,
                       const ops::AttentionBackward& op);

// Elements of float32 that the two need at once.
std::int64_t AttentionRoom(const BackendLimits& limits);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_H_
