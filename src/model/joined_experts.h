// The experts of a layer as two parameters, as checkpoints of gpt-oss have them. E experts of F:
//
//   experts.gate_up_proj       [E, D, 2 F], or E matrices (2 F, D) in MXFP4 (io/mxfp4.h)
//   experts.gate_up_proj_bias  [E, 2 F]: outputs 2 i are gate i, outputs 2 i + 1 up i
//   experts.down_proj          [E, F, D], or E matrices (D, F)
//   experts.down_proj_bias     [E, D]
#ifndef QLORA_MODEL_JOINED_EXPERTS_H_
#define QLORA_MODEL_JOINED_EXPERTS_H_

#include <string>
#include <vector>

#include "config/config.h"
#include "model/tensor_views.h"

namespace qlora {

// Replaces these parameters by views of the linears of each expert, "experts.0.gate_proj.weight"
// (F, D) and so on. prefix: of the layers' tensors ("model."). Errors: InvalidInput for shapes of
// another model.
void CutJoinedExperts(const DecoderConfig& config, const std::string& prefix,
                      std::vector<TensorView>& views);

}  // namespace qlora

#endif  // QLORA_MODEL_JOINED_EXPERTS_H_
