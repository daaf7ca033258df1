// Checks of the inputs of quantization, the same for every form.
#ifndef QLORA_QUANT_QUANTIZE_CHECKS_H_
#define QLORA_QUANT_QUANTIZE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "qlora/context.h"
#include "qlora/nf4.h"

namespace qlora {

// "quantize: tensor 'name'", the beginning of an error message.
std::string QuantizeSubject(const std::string& name);

// Errors (InvalidInput): options that no matrix of this shape can have.
void CheckQuantizeOptions(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options);
// Errors (InvalidInput): w is not F32, BF16 or F16.
void CheckDType(const ConstMatrixView& w, const std::string& name);
// Throws the error (InvalidInput) of the first NaN or Inf in w, which has one.
[[noreturn]] void ThrowNotFinite(Context& context, const ConstMatrixView& w,
                                 const std::string& name);
// Errors (InvalidInput): storage of less than `bytes`, or not aligned to 64.
void CheckStorage(std::span<const std::byte> storage, std::size_t bytes, const std::string& name);

}  // namespace qlora

#endif  // QLORA_QUANT_QUANTIZE_CHECKS_H_
