// QLoraLinear and qlora_linear.
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "layer.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;
using LayerClass = py::class_<Layer>;

void BindMaking(LayerClass& layer) {
  layer
      // Arguments are gathered into structs at once: with this many, positions are easily mistaken
      // in C++ too.
      .def_static(
          "from_weight",
          [](const py::object& w, std::int64_t r, double lora_alpha, double lora_dropout,
             bool use_rslora, std::uint64_t seed, const py::object& compute_dtype,
             bool int8_backward, const py::object& bias, const std::string& quant_type,
             std::int64_t block_size, const std::string& scale_type, std::int64_t scaler_block_size,
             const std::string& rule, bool scale_search, const py::object& importance,
             bool row_blocks, bool zero_point, const ContextPtr& context) {
            return LayerFromWeight(w,
                                   {r, lora_alpha, lora_dropout, use_rslora, seed,
                                    NameOfDType("compute_dtype", compute_dtype), int8_backward},
                                   {quant_type, block_size, scale_type, scaler_block_size, rule,
                                    scale_search, row_blocks, zero_point, "w"},
                                   importance, bias, context);
          },
          "w"_a, "r"_a = 16, "lora_alpha"_a = 32.0, "lora_dropout"_a = 0.0, "use_rslora"_a = false,
          // Keywords from here on: the order of this many settings is easily mistaken.
          "seed"_a = 42, py::kw_only(), "compute_dtype"_a = "float32", "int8_backward"_a = false,
          "bias"_a = py::none(), "quant_type"_a = "nf4", "block_size"_a = 64,
          "scale_type"_a = "double_bnb", "scaler_block_size"_a = 256, "rule"_a = "cpu",
          "scale_search"_a = false, "importance"_a = py::none(), "row_blocks"_a = false,
          "zero_point"_a = false, "context"_a = py::none(),
          "Quantizes w (out_features, in_features). A is uniform in +-1/sqrt(in_features), B zero. "
          "Raises Error: what quantize() refuses, r < 1, lora_alpha <= 0, lora_dropout outside "
          "[0, 1), a bias of another length. compute_dtype: operands of products, float32, "
          "bfloat16, or int8: 8 bits of x and of the weight, beside bfloat16; refused with "
          "zero_point, and with row_blocks that do not divide in_features. int8_backward, beside "
          "int8: 8 bits of dy in backward(), too.")
      .def_static(
          "from_quantized",
          [](const NF4Tensor& weight, std::int64_t r, double lora_alpha, double lora_dropout,
             bool use_rslora, std::uint64_t seed, const py::object& compute_dtype,
             bool int8_backward, const py::object& bias, const ContextPtr& context) {
            return LayerFromQuantized(weight,
                                      {r, lora_alpha, lora_dropout, use_rslora, seed,
                                       NameOfDType("compute_dtype", compute_dtype), int8_backward},
                                      bias, context);
          },
          // The defaults of from_weight.
          "weight"_a, "r"_a = 16, "lora_alpha"_a = 32.0, "lora_dropout"_a = 0.0,
          "use_rslora"_a = false, "seed"_a = 42, py::kw_only(), "compute_dtype"_a = "float32",
          "int8_backward"_a = false, "bias"_a = py::none(), "context"_a = py::none(),
          "The same around an NF4Tensor (out_features, in_features), whose memory it shares. "
          "Raises Error: as from_weight.")
      .def(py::pickle([](const Layer& l) { return l.State(); }, &Layer::FromState));
}

// One file for one layer; whole adapters are written by train() and read by PEFT.
void BindFiles(LayerClass& layer) {
  layer
      .def_static("load", &LoadLayer, "file"_a, py::kw_only(), "context"_a = py::none(),
                  "Reads what save() wrote. Raises Error: anything that does not fit together.")
      .def(
          "save", &Layer::Save, "file"_a,
          "Writes one safetensors file: the weight as bitsandbytes stores it, bias, lora_A.weight, "
          "lora_B.weight. Raises Error: zero points, row blocks, 16-bit or torchao scales.");
}

// Without autograd: a caller gives x again in backward, and the mask by its step.
void BindPasses(LayerClass& layer) {
  layer
      .def("forward", &Layer::Forward, "x"_a, "dropout_step"_a = py::none(), py::kw_only(),
           "out"_a = py::none(),
           "y (..., out_features) from x (..., in_features), float32 or bfloat16, in the dtype of "
           "x. dropout_step: None drops nothing; a number draws its own mask, the same at every "
           "call. Raises Error: another shape or dtype.")
      // Modules of PyTorch are called in the same way.
      .def("__call__", &Layer::Forward, "x"_a, "dropout_step"_a = py::none(), py::kw_only(),
           "out"_a = py::none(), "The same as forward.")
      .def("backward", &Layer::Backward, "x"_a, "dy"_a, "dropout_step"_a = py::none(),
           "Adds to da and db for dy (..., out_features) and returns dx, the gradient of x, in the "
           "dtype of dy. x and dropout_step: those of forward. Raises Error: other shapes or "
           "dtypes, and while merged.")
      .def("zero_gradients", &Layer::ZeroGradients, "da = db = 0.");
}

void BindWeight(LayerClass& layer) {
  layer
      .def("dequantize_weight", &Layer::DequantizeWeight, "dtype"_a = "float32", py::kw_only(),
           "out"_a = py::none(),
           "The frozen weight (out_features, in_features) in dtype: float32, bfloat16 or float16. "
           "Raises Error: another dtype or shape of out.")
      .def("merged_weight", &Layer::MergedWeight, "dtype"_a = "float32", py::kw_only(),
           "out"_a = py::none(),
           "W + s B A (out_features, in_features); the rest as in dequantize_weight.")
      .def(
          "merge", &Layer::Merge,
          "From now on the layer computes with W + s B A in float32. Raises Error: merged already.")
      .def("unmerge", &Layer::Unmerge,
           "Back to the 4-bit weight, bit for bit. Raises Error: not merged.")
      // A merged layer has no gradients: backward() needs the frozen weight apart from the adapter.
      .def_property_readonly(
          "merged", [](const Layer& l) { return l.linear().merged(); },
          "Whether merge() is in force.");
}

void BindAdapter(LayerClass& layer) {
  layer
      .def("set_lora_a", &Layer::SetA, "a"_a,
           "Copies float32 (r, in_features) into A. Raises Error: another shape or dtype, values "
           "that are not finite, while merged.")
      .def("set_lora_b", &Layer::SetB, "b"_a,
           "Copies float32 (out_features, r) into B. Raises Error: as set_lora_a.")
      // A read-only view: a write to its memory would bypass the checks of SetA (finite values, not
      // merged).
      .def_property(
          "lora_a", [](const Layer& l) { return l.View(l.linear().a(), true); }, &Layer::SetA,
          "float32 (r, in_features): a read-only view; assign to set.")
      .def_property(
          "lora_b", [](const Layer& l) { return l.View(l.linear().b(), true); }, &Layer::SetB,
          "float32 (out_features, r): a read-only view; assign to set.")
      // Writable, so that optimizers can scale or clip gradients in place.
      .def_property_readonly(
          "da", [](const Layer& l) { return l.View(l.linear().da(), false); },
          "float32 (r, in_features): gradient of A, a view.")
      .def_property_readonly(
          "db", [](const Layer& l) { return l.View(l.linear().db(), false); },
          "float32 (out_features, r): gradient of B, a view.")
      .def_property_readonly(
          "r", [](const Layer& l) { return l.linear().config().r; }, "Rank: the rows of A.")
      .def_property_readonly(
          "lora_alpha", [](const Layer& l) { return l.linear().config().lora_alpha; },
          "Numerator of scaling.")
      .def_property_readonly(
          "lora_dropout", [](const Layer& l) { return l.linear().config().lora_dropout; },
          "Share of the inputs of A that a mask drops.")
      .def_property_readonly("compute_dtype", &Layer::compute_dtype,
                             "Operands of products: \"float32\", \"bfloat16\" or \"int8\".")
      .def_property_readonly(
          "int8_backward", [](const Layer& l) { return l.linear().config().int8_backward; },
          "Whether backward() has 8 bits of dy.")
      .def_property_readonly(
          "scaling", [](const Layer& l) { return l.linear().scaling(); },
          "s: lora_alpha / r, or lora_alpha / sqrt(r).");
}

void BindFrozenParts(LayerClass& layer) {
  layer.def_property_readonly("bias", &Layer::Bias, "float32 (out_features), a view; or None.")
      .def_property_readonly("weight", &Layer::Quantized, "The NF4Tensor, sharing memory.")
      .def_property_readonly(
          "in_features", [](const Layer& l) { return l.linear().in_features(); }, "Columns of W.")
      .def_property_readonly(
          "out_features", [](const Layer& l) { return l.linear().out_features(); }, "Rows of W.")
      .def_property_readonly(
          "group_size", [](const Layer& l) { return l.linear().group_size(); },
          "Values that share a scale.")
      .def_property_readonly(
          "zero_point",
          [](const Layer& l) -> py::object { return py::cast(l.Quantized()).attr("zero_point"); },
          "float32 (blocks), or None.");
}

// <QLoraLinear 128 -> 64, r 16, lora_alpha 32, blocks of 64, compute_dtype int8>
std::string Repr(const Layer& layer) {
  const QLoraLinear& l = layer.linear();
  return fmt::format(
      "<QLoraLinear {} -> {}, r {}, lora_alpha {:g}, blocks of {}, compute_dtype {}{}{}>",
      l.in_features(), l.out_features(), l.config().r, l.config().lora_alpha, l.group_size(),
      layer.compute_dtype(), l.config().int8_backward ? ", int8_backward" : "",
      l.merged() ? ", merged" : "");
}

void BindLayerSizes(LayerClass& layer) {
  layer
      .def_property_readonly(
          "trainable_params", [](const Layer& l) { return l.linear().trainable_params(); },
          "r * (in_features + out_features)")
      .def_property_readonly(
          "num_trainable_parameters", [](const Layer& l) { return l.linear().trainable_params(); },
          "The same as trainable_params.")
      .def_property_readonly(
          "total_params", [](const Layer& l) { return l.linear().total_params(); },
          "trainable_params and the parameters of weight and bias.")
      .def_property_readonly(
          "size_bytes", [](const Layer& l) { return l.linear().size_bytes(); },
          "Bytes of weight, bias, A and B.")
      .def_property_readonly(
          "memory_saved_bytes", [](const Layer& l) { return l.linear().memory_saved_bytes(); },
          "What the weight takes less than in float32.")
      // The ratio of the frozen weight alone: adapters are not compressed.
      .def_property_readonly(
          "compression_ratio",
          [](const Layer& l) { return l.linear().weight().compression_ratio(); },
          "Bytes of the weight as float32 / its bytes.");
}

}  // namespace

void BindLinear(py::module_& module) {
  LayerClass layer(module, "QLoraLinear",
                   R"(y = x W^T + bias + s (drop(x) A^T) B^T with W in 4 bits and trained A, B.

s = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora (arXiv:2305.14314, equation 5).
x: float32, bfloat16, or float64, which is rounded to float32 (..., in_features); W (out_features, in_features); A (r, in_features);
B (out_features, r), both float32. Calls release the interpreter's lock.)");
  // Bound in parts, so that each function is short; help() keeps this order.
  BindMaking(layer);
  BindFiles(layer);
  BindPasses(layer);
  BindWeight(layer);
  BindAdapter(layer);
  BindFrozenParts(layer);
  BindLayerSizes(layer);
  layer.def("__repr__", &Repr);
  module.def("qlora_linear", &ApplyLinear, "x"_a, "weight"_a, "a"_a, "b"_a, "lora_alpha"_a,
             "bias"_a = py::none(), py::kw_only(), "context"_a = py::none(),
             "y (..., O) = x W^T + bias + lora_alpha / r (x A^T) B^T for x (..., I) of float32 or "
             "bfloat16, an NF4Tensor W (O, I), and A (r, I), B (O, r), bias (O) of float32. Raises "
             "Error: other shapes or dtypes.");
}

}  // namespace qlora::python
