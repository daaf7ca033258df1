// Tells whether this program has machine code for the device.
#ifndef QLORA_BACKEND_CUDA_DEVICE_KERNEL_IMAGE_H_
#define QLORA_BACKEND_CUDA_DEVICE_KERNEL_IMAGE_H_

namespace qlora::cuda {

// Loads a kernel into the first device, and with it makes the context of the process. The error, a
// cudaError_t.
int LoadKernelImage();

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_DEVICE_KERNEL_IMAGE_H_
