// The options of 4-bit weights (QuantizationFields) as the library takes them.
#ifndef QLORA_MODEL_QUANTIZATION_H_
#define QLORA_MODEL_QUANTIZATION_H_

#include "qlora/nf4.h"
#include "qlora/quantization.h"

namespace qlora {

// Errors: InvalidInput for a codebook or block size that does not exist.
QuantizeOptions ParseQuantizeOptions(const QuantizationFields& fields);

}  // namespace qlora

#endif  // QLORA_MODEL_QUANTIZATION_H_
