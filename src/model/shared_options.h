// The options that training, generation, conversion and benchmarks share, declared once.
#ifndef QLORA_MODEL_SHARED_OPTIONS_H_
#define QLORA_MODEL_SHARED_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend_factory.h"
#include "qlora/options.h"

namespace qlora {

// model_name_or_path, where model weights are read from.
void DeclareModelPath(OptionTable& table, std::string* model_name_or_path);
// adapter and adapter_rank; use: "to apply", which ends the help of the first.
void DeclareAdapters(OptionTable& table, std::vector<std::string>* adapters, std::int64_t* rank,
                     const std::string& use);
// compute_dtype: see ParsePrecision.
void DeclareComputeType(OptionTable& table, std::string* compute_dtype);

// "auto", "float32", "bfloat16" or "int8" -> the activation type and the products of frozen
// weights; auto is the type that the backends prefer. int8 has bfloat16 activations; int8_backward:
// and gradients in 8 bits.
Precision ParsePrecision(const std::string& compute_dtype, const BackendFactory& backends,
                         bool int8_backward = false);
// The inverse, in which "auto" is what it became.
const char* ComputeTypeOf(const Precision& precision);

}  // namespace qlora

#endif  // QLORA_MODEL_SHARED_OPTIONS_H_
