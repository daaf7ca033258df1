// The product of rows or columns of a weight with panels of activations, and what of it stays in
// float32: spikes of activations, and what codes of the weight were clamped by.
#ifndef QLORA_BACKEND_CPU_INT8_CODED_PRODUCT_H_
#define QLORA_BACKEND_CPU_INT8_CODED_PRODUCT_H_

#include <cstdint>

#include "backend/cpu/int8/coded_operand.h"

namespace qlora::cpu {

// sums(operand.rows, lanes of all panels) = the product of an operand with rows of activations.
// values: those rows in float32 or bfloat16, for spikes. room: kInt8Stride bytes for each of
// CodedRows::kMost rows, however few the operand has. Of sums there are whole kInt8Vector rows.
void MultiplyCoded(const Int8Kernels& kernels, const CodedOperand& operand,
                   const CodedPanels& panels, const ConstMatrixView& values, std::uint8_t* room,
                   float* sums, std::int64_t stride);

// The same of rows, also with single panels.
void MultiplyCodedRows(const Int8Kernels& kernels, const CodedRows& rows, const CodedPanels& panels,
                       const ConstMatrixView& values, std::uint8_t* room, float* sums,
                       std::int64_t stride);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_PRODUCT_H_
