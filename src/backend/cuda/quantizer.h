// Quantization of weights of the host into device memory.
#ifndef QLORA_BACKEND_CUDA_QUANTIZER_H_
#define QLORA_BACKEND_CUDA_QUANTIZER_H_

#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/cuda/tables.h"
#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora::cuda {

// Bytes of a weight that are on the device at a time.
inline constexpr std::int64_t kStagedBytes = std::int64_t{64} << 20;

// Backend::Quantize: the bits of QuantizeInto, with codebooks from `tables`. Scale search, odd
// block sizes and weights with padded rows are quantized by the host.
QuantizedView QuantizeOn(Context& context, Device& device, const Tables& tables,
                         const ConstMatrixView& host, const QuantizeOptions& options,
                         const MatrixView& storage, std::int64_t staged_bytes = kStagedBytes);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_QUANTIZER_H_
