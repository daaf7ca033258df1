// The experts of a merged model in the two parameters of a layer that transformers has
// (model/joined_experts.h).
#ifndef QLORA_CONVERT_JOINED_EXPERTS_HF_H_
#define QLORA_CONVERT_JOINED_EXPERTS_HF_H_

#include <functional>
#include <span>
#include <vector>

#include "adapter/lora.h"
#include "config/config.h"
#include "io/tensor_file.h"
#include "model/weights.h"

namespace qlora {

struct JoinedTensor {
  TensorInfo info;
  // Calls write with the values, in pieces and in order.
  std::function<void(const std::function<void(std::span<const float>)>& write)> produce;
};

// All such tensors, of this type; empty for models without them. adapter: null, or merged in.
// Everything must outlive the result.
std::vector<JoinedTensor> JoinedExpertTensors(Context& context, Memory& memory,
                                              const DecoderConfig& config,
                                              const DecoderWeights& weights,
                                              const LoraAdapter* adapter, DType dtype);

}  // namespace qlora

#endif  // QLORA_CONVERT_JOINED_EXPERTS_HF_H_
