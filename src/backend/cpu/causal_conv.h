// The causal convolution of one sequence; definition: backend/recurrent_ops.h.
#ifndef QLORA_BACKEND_CPU_CAUSAL_CONV_H_
#define QLORA_BACKEND_CPU_CAUSAL_CONV_H_

#include "backend/cpu/row_ops.h"

namespace qlora::cpu {

// Rows of y and dx, counted from the start of the span. Rows read the window as it was before.
void CausalConvRows(const ops::CausalConv& op, const SequenceSpan& span, Range rows);
// The window of a span after its rows.
void ShiftWindow(const ops::CausalConv& op, const SequenceSpan& span);

void CausalConvBackwardRows(const ops::CausalConvBackward& op, const SequenceSpan& span,
                            Range rows);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_CAUSAL_CONV_H_
