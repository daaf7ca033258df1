#include "layer.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "base/check.h"
#include "keywords.h"

namespace qlora::python {
namespace {

using pybind11::literals::operator""_a;

// Returns the shape of x with another last dimension.
std::vector<std::int64_t> ShapeWith(const Array& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.shape();
  // A number has no last dimension that could be in_features.
  if (shape.empty()) ThrowInvalidInput("x: expected at least one dimension");
  shape.back() = last;
  return shape;
}

// Returns the values of `bias`, which `array` then keeps; empty for None.
std::span<const float> BiasOf(const py::object& bias, std::optional<Array>* array) {
  if (bias.is_none()) return {};
  array->emplace(WithoutFloat64("bias", bias, kParameterTypes));
  return (*array)->Flat<float>();
}

// "int8" -> I8, by the names that train() takes.
DType OperandType(const std::string& compute_dtype) {
  if (compute_dtype.empty()) ThrowInvalidInput("compute_dtype: expected a type, found ''");
  std::string name = "float32";
  OptionTable table;
  table.Choice("compute_dtype", &name, {"float32", "bfloat16", "int8"}, "");
  SetOptions(py::dict("compute_dtype"_a = compute_dtype), table);
  return name == "int8" ? DType::kI8 : name == "bfloat16" ? DType::kBF16 : DType::kF32;
}

}  // namespace

const char* Layer::compute_dtype() const {
  const DType compute = linear().config().compute;
  return compute == DType::kI8 ? "int8" : compute == DType::kBF16 ? "bfloat16" : "float32";
}

py::object Layer::Forward(const py::object& x, std::optional<std::uint64_t> dropout_step,
                          const py::object& out) const {
  const Array input = WithoutFloat64("x", x, kActivationTypes);
  const NewArray y = OutputArray(out, input.dtype(), ShapeWith(input, linear().out_features()));
  // Arrays are looked at before, with the lock; inside, memory alone is touched.
  Run([&] { linear().Forward(input.matrix(), y.view, dropout_step); });
  return y.object;
}

py::object Layer::Backward(const py::object& x, const py::object& dy,
                           std::optional<std::uint64_t> dropout_step) const {
  const Array input = WithoutFloat64("x", x, kActivationTypes);
  const Array gradient = WithoutFloat64("dy", dy, kActivationTypes);
  // The type of dy: gradients flow on in the type in which they came.
  const NewArray dx = MakeArray(gradient.dtype(), input.shape());
  Run([&] { linear().Backward(input.matrix(), gradient.matrix(), dx.view, dropout_step); });
  return dx.object;
}

// A new array, or `out`, that body fills with a weight.
template <typename Body>
py::object Layer::Weight(const py::object& dtype, const py::object& out, const Body& body) const {
  const DType type = out.is_none() ? ParseDType(dtype) : Array("out", out, kResultTypes).dtype();
  const NewArray to = OutputArray(out, type, {linear().out_features(), linear().in_features()});
  Run([&] { body(to.view); });
  return to.object;
}

py::object Layer::DequantizeWeight(const py::object& dtype, const py::object& out) const {
  return Weight(dtype, out, [&](MatrixView w) { linear().DequantizeWeight(w); });
}
py::object Layer::MergedWeight(const py::object& dtype, const py::object& out) const {
  return Weight(dtype, out, [&](MatrixView w) { linear().MergedWeight(w); });
}

void Layer::SetA(const py::object& a) const {
  const Array values = WithoutFloat64("A", a, kParameterTypes);
  Run([&] { linear().SetA(values.matrix()); });
}
void Layer::SetB(const py::object& b) const {
  const Array values = WithoutFloat64("B", b, kParameterTypes);
  Run([&] { linear().SetB(values.matrix()); });
}
void Layer::Merge() const {
  Run([&] { linear().Merge(); });
}
void Layer::Unmerge() const {
  Run([&] { linear().Unmerge(); });
}
void Layer::ZeroGradients() const {
  Run([&] { linear().ZeroGradients(); });
}
void Layer::Save(const std::filesystem::path& file) const {
  Run([&] { linear().Save(file); });
}

py::object Layer::View(const ConstMatrixView& m, bool read_only) const {
  // linear_ is the owner: a view keeps the layer alive.
  return ToPython(const_cast<void*>(m.data), m.dtype, {m.rows, m.cols}, linear_, read_only);
}
py::object Layer::Bias() const {
  const std::span<const float> bias = linear().bias();
  if (bias.empty()) return py::none();
  return ToPython(const_cast<float*>(bias.data()), DType::kF32, {std::ssize(bias)}, linear_, true);
}
NF4Tensor Layer::Quantized() const {
  return {linear().weight(), {linear().out_features(), linear().in_features()}};
}

// The context is named unless it is the module's own.
py::dict Layer::State() const {
  const QLoraConfig& config = linear().config();
  py::dict state("weight"_a = Quantized(), "bias"_a = Bias(), "lora_a"_a = View(linear().a(), true),
                 "lora_b"_a = View(linear().b(), true), "da"_a = View(linear().da(), true),
                 "db"_a = View(linear().db(), true), "merged"_a = linear().merged());
  state["r"] = config.r;
  state["lora_alpha"] = config.lora_alpha;
  state["lora_dropout"] = config.lora_dropout;
  state["use_rslora"] = config.use_rslora;
  state["seed"] = config.seed;
  state["compute_dtype"] = compute_dtype();
  state["int8_backward"] = config.int8_backward;
  // A copy in another process finds the module's own context there.
  state["context"] = context_ == ContextOr(nullptr) ? py::none() : py::cast(context_);
  return state;
}

Layer Layer::FromState(const py::dict& state) {
  const auto get = [&](const char* name) { return py::object(state[name]); };
  const LoraArguments lora = {
      get("r").cast<std::int64_t>(),      get("lora_alpha").cast<double>(),
      get("lora_dropout").cast<double>(), get("use_rslora").cast<bool>(),
      get("seed").cast<std::uint64_t>(),  get("compute_dtype").cast<std::string>(),
      get("int8_backward").cast<bool>()};
  const Layer layer = LayerFromQuantized(get("weight").cast<NF4Tensor>(), lora, get("bias"),
                                         get("context").cast<ContextPtr>());
  // Before merging, since a merged layer refuses new values.
  layer.SetA(get("lora_a"));
  layer.SetB(get("lora_b"));
  const auto copy = [&](const char* name, const MatrixView& to) {
    const Array array(name, get(name), {DType::kF32});
    const std::span<const float> from = array.Flat<float>();
    // A pickle may have been edited, or belong to another version.
    if (const std::int64_t expected = to.rows * to.cols; std::ssize(from) != expected) {
      ThrowInvalidInput("{}: expected {} values, found {}", name, expected, std::ssize(from));
    }
    std::copy(from.begin(), from.end(), to.Row<float>(0));
  };
  copy("da", layer.linear().da());
  copy("db", layer.linear().db());
  if (get("merged").cast<bool>()) layer.Merge();
  return layer;
}

QLoraConfig LoraArguments::ToConfig() const {
  QLoraConfig config;
  config.r = r;
  config.lora_alpha = lora_alpha;
  config.lora_dropout = lora_dropout;
  config.use_rslora = use_rslora;
  config.seed = seed;
  config.compute = OperandType(compute_dtype);
  config.int8_backward = int8_backward;
  return config;
}

Layer LayerFromWeight(const py::object& w, const LoraArguments& lora,
                      const QuantizeArguments& quantize, const py::object& importance,
                      const py::object& bias, const ContextPtr& context) {
  // Quantizing alone takes any shape, but a linear has rows and columns.
  if (const auto dimensions = Array("w", w, kFloatTypes).shape().size(); dimensions != 2) {
    ThrowInvalidInput("w: expected a matrix (out_features, in_features), found {} dimensions",
                      dimensions);
  }
  return LayerFromQuantized(QuantizeArray(w, quantize, importance, context), lora, bias, context);
}

Layer LayerFromQuantized(const NF4Tensor& weight, const LoraArguments& lora, const py::object& bias,
                         const ContextPtr& context) {
  std::optional<Array> bias_array;
  const std::span<const float> bias_values = BiasOf(bias, &bias_array);
  const QLoraConfig config = lora.ToConfig();
  // The layer keeps its threads: all its passes compute with the same ones.
  const ContextPtr threads = ContextOr(context);
  return threads->Run([&](Context& c) {
    return Layer(threads, QLoraLinear::FromQuantized(c, weight.matrix, config, bias_values));
  });
}

Layer LoadLayer(const std::filesystem::path& file, const ContextPtr& context) {
  const ContextPtr threads = ContextOr(context);
  return threads->Run([&](Context& c) { return Layer(threads, QLoraLinear::Load(c, file)); });
}

py::object ApplyLinear(const py::object& x, const NF4Tensor& weight, const py::object& a,
                       const py::object& b, double lora_alpha, const py::object& bias,
                       const ContextPtr& context) {
  // A (r, I) tells the rank.
  const std::int64_t rank = Array("a", a, kParameterTypes).matrix().rows;
  // A layer for one call: the weight is shared, only A and B are copied.
  const Layer layer =
      LayerFromQuantized(weight, {rank, lora_alpha, 0, false, 0, "float32", false}, bias, context);
  layer.SetA(a);
  layer.SetB(b);
  return layer.Forward(x, {}, py::none());
}

}  // namespace qlora::python
