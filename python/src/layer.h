// The QLoRA layer on arrays.
#ifndef QLORA_PYTHON_LAYER_H_
#define QLORA_PYTHON_LAYER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "array.h"
#include "nf4_tensor.h"
#include "qlora/linear.h"
#include "shared_context.h"

namespace qlora::python {

// A layer and the threads that it was made with. Passes run without the interpreter's lock.
class Layer {
 public:
  Layer(ContextPtr context, QLoraLinear linear)
      : context_(std::move(context)), linear_(std::make_shared<QLoraLinear>(std::move(linear))) {}

  QLoraLinear& linear() const { return *linear_; }
  const char* compute_dtype() const;  // as train() names them

  py::object Forward(const py::object& x, std::optional<std::uint64_t> dropout_step,
                     const py::object& out) const;
  py::object Backward(const py::object& x, const py::object& dy,
                      std::optional<std::uint64_t> dropout_step) const;
  py::object DequantizeWeight(const py::object& dtype, const py::object& out) const;
  py::object MergedWeight(const py::object& dtype, const py::object& out) const;

  void SetA(const py::object& a) const;
  void SetB(const py::object& b) const;
  void Merge() const;
  void Unmerge() const;
  void ZeroGradients() const;
  void Save(const std::filesystem::path& file) const;

  // Returns a view of the layer's own memory.
  py::object View(const ConstMatrixView& m, bool read_only) const;
  py::object Bias() const;
  NF4Tensor Quantized() const;

  // All that copy and pickle need, and the layer that it makes.
  py::dict State() const;
  static Layer FromState(const py::dict& state);

 private:
  template <typename Body>
  void Run(const Body& body) const {
    context_->Run([&](Context&) { body(); });
  }
  template <typename Body>
  py::object Weight(const py::object& dtype, const py::object& out, const Body& body) const;

  ContextPtr context_;
  std::shared_ptr<QLoraLinear> linear_;
};

struct LoraArguments {
  std::int64_t r;
  double lora_alpha;
  double lora_dropout;
  bool use_rslora;
  std::uint64_t seed;
  std::string compute_dtype;
  bool int8_backward;

  QLoraConfig ToConfig() const;
};

Layer LayerFromWeight(const py::object& w, const LoraArguments& lora,
                      const QuantizeArguments& quantize, const py::object& importance,
                      const py::object& bias, const ContextPtr& context);
Layer LayerFromQuantized(const NF4Tensor& weight, const LoraArguments& lora, const py::object& bias,
                         const ContextPtr& context);
Layer LoadLayer(const std::filesystem::path& file, const ContextPtr& context);

// Computes x (..., I) -> (..., O) = x W^T + bias + alpha / r (x A^T) B^T, without a layer.
py::object ApplyLinear(const py::object& x, const NF4Tensor& weight, const py::object& a,
                       const py::object& b, double lora_alpha, const py::object& bias,
                       const ContextPtr& context);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_LAYER_H_
