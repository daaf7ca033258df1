// The tensors of a model with its adapter merged in, as those of a GGUF file: in its order of rows
// and columns, with its factors, and of the experts of a layer one tensor. They are read, a part at
// a time, when the file is written.
#ifndef QLORA_EXPORT_GGUF_GGUF_MODEL_TENSORS_H_
#define QLORA_EXPORT_GGUF_GGUF_MODEL_TENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/memory.h"
#include "convert/merged_linear.h"
#include "export/gguf/gguf_model_source.h"
#include "export/gguf/gguf_plan.h"
#include "model/tensor_list.h"
#include "qlora/context.h"

namespace qlora {

class GgufModelTensors {
 public:
  // memory: of weights and adapter. All must outlive this, and this plan.Write, which reads it.
  GgufModelTensors(Context& context, Memory& memory, const GgufModelSource& model, GgufPlan& plan);
  GgufModelTensors(const GgufModelTensors&) = delete;
  GgufModelTensors& operator=(const GgufModelTensors&) = delete;

  // Whether the adapter changes values of a linear, or of a table.
  bool Changes(const LayerTensor& row, std::int64_t l) const;
  bool ChangesTable(const DecoderTensor& row) const;

  // These add a tensor to the plan. table: of the weights of the model.
  GgufTensor& AddTable(const std::string& name, const WeightView& table, TensorType type);
  void AddVector(const std::string& name, const ConstMatrixView& values);
  // The linears that share the tensor `weight`.
  GgufTensor& AddLinear(const LayerTensor& row, std::int64_t l, const std::string& weight,
                        TensorType type);
  // Their biases, if they have any.
  void AddBias(const LayerTensor& row, std::int64_t l, const std::string& weight);
  // Values of the wide type, in float32.
  void AddValues(const LayerTensor& row, std::int64_t l);

 private:
  std::vector<float> FloatsOf(const ConstMatrixView& m) const;
  // Returns the linear that is being written. Only this linear may have a copy in host memory.
  const MergedLinear& Merged(const FrozenLinear* frozen, const LoraLinear* lora);
  // A vector, or the rows of all experts.
  void Biases(const std::string& name, const std::vector<const FrozenLinear*>& stack,
              const std::vector<std::int64_t>& order, float factor);

  Context& context_;
  Memory& memory_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const LoraAdapter* adapter_;
  GgufPlan& plan_;
  const FrozenLinear* current_ = nullptr;
  std::optional<MergedLinear> merged_;
};

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_GGUF_MODEL_TENSORS_H_
