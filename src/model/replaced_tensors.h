// Tensors of a decoder that an adapter brings, besides linears and tables: norms and vectors that
// were trained as a whole, and changes of routers. Weights are loaded with them, as if the
// checkpoint had them.
#ifndef QLORA_MODEL_REPLACED_TENSORS_H_
#define QLORA_MODEL_REPLACED_TENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "io/tensor_file.h"

namespace qlora {

struct ReplacedTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // as a checkpoint stores them
  bool is_change = false;     // added to the values of the checkpoint
};
// By name: "model.layers.0.input_layernorm.weight".
using ReplacedTensors = std::map<std::string, ReplacedTensor>;

// Whether an adapter may bring this tensor: a norm, a router, a bias or another vector.
bool IsReplaceable(const DecoderConfig& config, const std::string& name);

// The tensors of a checkpoint that OpenCheckpoint opened with these in the place of its own, as
// F32. Errors: InvalidInput for a tensor of another shape, and for one that the checkpoint lacks.
std::unique_ptr<TensorReader> WithReplaced(std::unique_ptr<TensorReader> checkpoint,
                                           std::shared_ptr<const ReplacedTensors> replaced,
                                           const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_MODEL_REPLACED_TENSORS_H_
