// The checks of ops that ops.cc, linear_checks.cc, expert_checks.cc and recurrent_checks.cc share.
#ifndef QLORA_BACKEND_OP_CHECKS_H_
#define QLORA_BACKEND_OP_CHECKS_H_

#include <cstdint>

#include "backend/checker.h"
#include "backend/ops.h"

namespace qlora {

// W (O, I) in any of its forms, cols: I.
void CheckWeight(Checker& check, const char* name, const WeightView& weight, std::int64_t cols);

// in_features: I of the input. A part that a linear does not have is an empty view. The parts of an
// adapter come together or not at all. Scales and codes of 4-bit weights are tested for presence
// only, because their sizes are not part of the view.
void CheckLinear(Checker& check, const LinearView& linear, std::int64_t in_features);

// The outputs of a linear for x (N, I). rank: R of u, the one operand that an adapter adds; without
// an adapter, R = 0, u must not be given, so that no caller reads values that nobody wrote.
void CheckOutput(Checker& check, const ConstMatrixView& x, const LinearView& linear,
                 std::int64_t rank, const LinearOutput& out, Store store);

// The gradients that belong to the parameters of a linear.
void CheckParameterGradients(Checker& check, const LinearView& linear, const LinearGradient& g);

void Check(Checker& check, const ops::Linear& op);
void Check(Checker& check, const ops::LinearBackward& op);

void Check(Checker& check, const ops::ExpertLinear& op);
void Check(Checker& check, const ops::ExpertLinearBackward& op);
void Check(Checker& check, const ops::RouteExperts& op);
void Check(Checker& check, const ops::RouteExpertsBackward& op);
void Check(Checker& check, const ops::GateRows& op);
void Check(Checker& check, const ops::GateRowsBackward& op);

void Check(Checker& check, const ops::CausalConv& op);
void Check(Checker& check, const ops::CausalConvBackward& op);
void Check(Checker& check, const ops::GatedDeltaRule& op);
void Check(Checker& check, const ops::GatedDeltaRuleBackward& op);

}  // namespace qlora

#endif  // QLORA_BACKEND_OP_CHECKS_H_
