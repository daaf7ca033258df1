// The name of a stream: a queue of kernels and copies that run in the order in which they were
// given.
#ifndef QLORA_BACKEND_CUDA_STREAM_H_
#define QLORA_BACKEND_CUDA_STREAM_H_

namespace qlora::cuda {

using Stream = void*;

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_STREAM_H_
