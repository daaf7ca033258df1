// Quantization of weights of the host into device memory.
#ifndef QLORA_BACKEND_CUDA_QUANTIZER_H_
#define QLORA_BACKEND_CUDA_QUANTIZER_H_

#include "backend/cuda/device.h"
#include "backend/cuda/tables.h"
#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora::cuda {

// Backend::Quantize: the bits of QuantizeInto, with codebooks from `tables`. Scale search, odd
// block sizes and weights with padded rows are quantized by the host.
QuantizedView QuantizeOn(Context& context, Device& device, const Tables& tables,
                         const ConstMatrixView& host, const QuantizeOptions& options,
                         const MatrixView& storage);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_QUANTIZER_H_
