// The CUDA runtime on the model of a GPU: host_cuda.cc defines the functions of libcudart that
// device/ calls, so that its code runs as it is. Copies and fills run as late as the queues of the
// model say, from and to host memory as it is then; an error stays until it is asked for.
#ifndef QLORA_TESTS_GPU_HOST_HOST_CUDA_H_
#define QLORA_TESTS_GPU_HOST_HOST_CUDA_H_

#include <cstddef>
#include <cstdint>

namespace gpu_host {

struct CudaOptions {
  // The device reads memory of the host that is not page-locked, when a copy runs. Otherwise its
  // bytes are taken when the copy is queued.
  bool reads_host = false;
  std::size_t memory_limit = std::size_t{1} << 40;  // bytes of one allocation
  std::int64_t failing_copies = 0;                  // the next copies, which fail
};
extern CudaOptions cuda_options;

// Time as events see it, which work that runs may add to.
extern float milliseconds;

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_HOST_CUDA_H_
