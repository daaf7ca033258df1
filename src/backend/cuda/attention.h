// Attention and its gradient: own kernels, or kernels of a library of the GPU.
//
// cuDNN, where it is found, runs the attention of training in bfloat16: packed sequences as they
// are, causal, with or without a window. It works in the workspace of the products, which is idle
// then and which a fast run makes large enough for the longest sequence; packed sequences are cut
// into groups that fit (attention_groups.h). A plan of cuDNN takes about a second to make, so
// numbers and lengths of sequences are rounded up to powers of two (device/attention_plan.h).
//
// Generation, float32, capped scores, and shapes that cuDNN has no plan or no room for are the work
// of own kernels.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_H_
#define QLORA_BACKEND_CUDA_ATTENTION_H_

#include <cstddef>
#include <span>

#include "backend/cuda/linear.h"
#include "backend/ops.h"

namespace qlora::cuda {

// A library with kernels for some shapes of attention. device/cudnn_attention.cc has cuDNN,
// tests/gpu_host/host_attention.cc the reference.
//
// It is given the passes of training with products in bfloat16, where caps of scores are 0: all
// operands but lse are bfloat16 with rows that begin at multiples of 16 bytes; spans follow one
// another, cover all rows, and have as many queries as keys.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Queues the op and returns true; false where the library has no kernel for it or needs more
  // room, and nothing has been queued then. room: the workspace of the backend, with undefined
  // values before and after, aligned to 256 bytes.
  virtual bool Run(Stream stream, const ops::Attention& op, std::span<std::byte> room) = 0;
  virtual bool Run(Stream stream, const ops::AttentionBackward& op, std::span<std::byte> room) = 0;
};

// The library, which may be null, is asked first.
void AttentionForward(const Machine& machine, AttentionLibrary* library, const ops::Attention& op);
void AttentionBackward(const Machine& machine, AttentionLibrary* library,
                       const ops::AttentionBackward& op);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_H_
