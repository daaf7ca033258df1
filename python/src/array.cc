#include "array.h"

#include <dlpack/dlpack.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/shape.h"

namespace qlora::python {
namespace {

// DLPack's protocol: a producer names its capsule "dltensor"; the consumer that takes the tensor
// renames the capsule, and from then on calls the deleter itself.
constexpr const char* kFresh = "dltensor";
constexpr const char* kUsed = "used_dltensor";

struct TypeName {
  DType dtype;
  const char* name;
  DLDataTypeCode code;
  std::uint8_t bits;
};
constexpr TypeName kTypes[] = {
    {DType::kF32, "float32", kDLFloat, 32},    {DType::kF16, "float16", kDLFloat, 16},
    {DType::kBF16, "bfloat16", kDLBfloat, 16}, {DType::kU8, "uint8", kDLUInt, 8},
    {DType::kI8, "int8", kDLInt, 8},           {DType::kF64, "float64", kDLFloat, 64},
};
const TypeName& TypeOf(DType dtype) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const TypeName& type) { return type.dtype == dtype; });
}

std::int64_t Product(const std::vector<std::int64_t>& shape) {
  return CountValues("an array", shape);
}

// Returns (product of the leading dimensions, last dimension).
MatrixView Fold(void* data, DType dtype, const std::vector<std::int64_t>& shape) {
  const std::int64_t cols = shape.empty() ? 1 : shape.back();
  // Without columns the product is 0 and does not give the rows.
  const std::int64_t rows = cols == 0 ? 0 : Product(shape) / cols;
  return {data, dtype, rows, cols, cols};
}

// Refuses a type that is known here and not asked for, or not known.
[[noreturn]] void ThrowType(const std::string& name, DTypes types, const std::string& found) {
  ThrowInvalidInput("{}: expected {}, found {}", name, NamesOf(types), found);
}

// The entry of kTypes for which is(entry) holds, if it is one of `types`; else null.
template <typename Is>
const TypeName* FindType(DTypes types, const Is& is) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), is);
  const bool taken = found != std::end(kTypes) &&
                     std::find(types.begin(), types.end(), found->dtype) != types.end();
  return taken ? found : nullptr;
}

// The name of the type of a tensor that is not taken.
std::string DTypeText(const py::object& object, const DLDataType& type) {
  if (!py::hasattr(object, "dtype")) {
    return fmt::format("DLPack type {} of {} bits", int{type.code}, int{type.bits});
  }
  const std::string name = py::str(object.attr("dtype"));
  return name.substr(name.rfind('.') + 1);
}

// The memory that a DLPack consumer receives, and all that it points to.
struct Exported {
  DLManagedTensor managed = {};
  std::vector<std::int64_t> shape;
  std::shared_ptr<const void> owner;
};

py::capsule ExportDlpack(void* data, DType dtype, const std::vector<std::int64_t>& shape,
                         std::shared_ptr<const void> owner) {
  auto exported = std::make_unique<Exported>();
  // The consumer reads the shape by a pointer, so it must live as long as the tensor.
  exported->shape = shape;
  exported->owner = std::move(owner);
  const TypeName& type = TypeOf(dtype);
  DLTensor& tensor = exported->managed.dl_tensor;
  tensor.data = data;
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int>(shape.size());
  tensor.dtype = {static_cast<std::uint8_t>(type.code), type.bits, 1};
  // strides stays null, which means compact rows.
  tensor.shape = exported->shape.data();
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };
  const auto destroy = [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, kFresh) == 0) return;  // someone took it and will delete it
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
    managed->deleter(managed);
  };
  PyObject* capsule = PyCapsule_New(&exported->managed, kFresh, destroy);
  if (capsule == nullptr) throw py::error_already_set();
  // The capsule owns it now; before, an exception would still have freed it.
  exported.release();
  return py::reinterpret_steal<py::capsule>(capsule);
}

// bfloat16 memory, which numpy cannot name.
class Tensor {
 public:
  Tensor(void* data, std::vector<std::int64_t> shape, std::shared_ptr<const void> owner)
      : data_(data), shape_(std::move(shape)), owner_(std::move(owner)) {}

  py::tuple shape() const { return py::tuple(py::cast(shape_)); }
  py::capsule Dlpack() const { return ExportDlpack(data_, DType::kBF16, shape_, owner_); }

  py::array Bits() const {
    // numpy keeps `base` alive as long as the array, and `base` keeps the memory.
    const py::capsule base(new std::shared_ptr<const void>(owner_), [](void* pointer) {
      delete static_cast<std::shared_ptr<const void>*>(pointer);
    });
    return py::array(py::dtype::of<std::uint16_t>(), shape_, data_, base);
  }

  py::array Float() const {
    py::array_t<float> out(shape_);
    const auto* from = static_cast<const BFloat16*>(data_);
    float* to = out.mutable_data();
    for (std::int64_t i = 0; i < Product(shape_); ++i) to[i] = ToFloat(from[i]);
    return out;
  }

 private:
  void* data_;
  std::vector<std::int64_t> shape_;
  std::shared_ptr<const void> owner_;
};

Tensor TensorOfValues(const py::object& values) {
  const Floats floats("values", values);
  const std::shared_ptr<BFloat16[]> memory(new BFloat16[floats.values().size()]);
  std::transform(floats.values().begin(), floats.values().end(), memory.get(),
                 [](float value) { return ToBFloat16(value); });
  return {memory.get(), floats.shape(), memory};
}

Tensor TensorOfBits(const py::array& array) {
  const py::array_t<std::uint16_t, py::array::c_style> bits(array);
  const std::shared_ptr<BFloat16[]> memory(new BFloat16[bits.size()]);
  // A copy: the bytes belong to the unpickled object.
  std::memcpy(memory.get(), bits.data(), bits.nbytes());
  return {memory.get(), {bits.shape(), bits.shape() + bits.ndim()}, memory};
}

}  // namespace

std::string NamesOf(DTypes types) {
  std::string names;
  for (const DType& type : types) {
    const bool is_last = &type == types.end() - 1;
    names += fmt::format("{}{}", names.empty() ? "" : is_last ? " or " : ", ", TypeOf(type).name);
  }
  return names;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Array::Array(const char* name, const py::object& object, DTypes types) : name_(name) {
  // numpy first: its arrays have __dlpack__ too, which refuses read-only ones.
  if (py::isinstance<py::array>(object)) {
    ReadNumpy(py::reinterpret_borrow<py::array>(object), types);
  } else if (py::hasattr(object, "__dlpack__")) {
    ReadDlpack(object, types);
  } else {
    ThrowInvalidInput("{}: expected a numpy array or an object with __dlpack__, found {}", name_,
                      std::string(py::str(py::type::handle_of(object).attr("__name__"))));
  }
}

void CheckIsPlain(const std::string& name, const py::array& array) {
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::type::handle_of(array).is(numpy.attr("ndarray")) &&
      py::isinstance(array, numpy.attr("ma").attr("MaskedArray"))) {
    ThrowInvalidInput(
        "{}: expected an array without a mask, found a masked array; pass x.filled(0) or x.data",
        name);
  }
  if (!array.dtype().attr("isnative").cast<bool>()) {
    ThrowInvalidInput(
        "{}: expected the byte order of this machine, found dtype {}; pass x.astype('{}')", name,
        std::string(py::str(array.dtype())), std::string(py::str(array.dtype().attr("name"))));
  }
}

void Array::ReadNumpy(const py::array& array, DTypes types) {
  CheckIsPlain(name_, array);
  // Compared by name, which also finds the bfloat16 of ml_dtypes, a type that numpy itself does not
  // have.
  const std::string type = py::str(array.dtype().attr("name"));
  const TypeName* known = FindType(types, [&](const TypeName& t) { return type == t.name; });
  if (known == nullptr) ThrowType(name_, types, type);
  dtype_ = known->dtype;
  // Written to only through writable(), which asks read_only_.
  data_ = const_cast<void*>(array.data());
  read_only_ = !array.writeable();
  owner_ = array;
  std::vector<std::int64_t> strides;
  const auto bytes = static_cast<std::int64_t>(BytesOf(dtype_, 1));
  for (py::ssize_t d = 0; d < array.ndim(); ++d) {
    shape_.push_back(array.shape(d));
    // A stride that is not a multiple of the element is as unusable as a reversed one.
    strides.push_back(array.strides(d) % bytes == 0 ? array.strides(d) / bytes : -1);
  }
  SetOrder(strides);
}

void Array::ReadDlpack(const py::object& object, DTypes types) {
  const auto device = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  // Asked before __dlpack__: a tensor of a GPU would be exported for nothing.
  if (device.first != kDLCPU) {
    ThrowInvalidInput("{}: expected memory of the CPU, found a tensor of DLPack device {}", name_,
                      device.first);
  }
  const auto capsule = object.attr("__dlpack__")().cast<py::capsule>();
  if (capsule.name() == nullptr || std::strcmp(capsule.name(), kFresh) != 0) {
    ThrowInvalidInput("{}: __dlpack__ returned no fresh capsule", name_);
  }
  auto* managed = capsule.get_pointer<DLManagedTensor>();
  // Right after taking the tensor, so that no exception below leaves it with two owners.
  PyCapsule_SetName(capsule.ptr(), kUsed);
  owner_ = py::capsule(managed, [](void* pointer) {
    auto* tensor = static_cast<DLManagedTensor*>(pointer);
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  });
  const DLTensor& tensor = managed->dl_tensor;
  const TypeName* known = FindType(types, [&](const TypeName& t) {
    return tensor.dtype.code == t.code && tensor.dtype.bits == t.bits && tensor.dtype.lanes == 1;
  });
  // torch.int64 and its like say their own names.
  if (known == nullptr) ThrowType(name_, types, DTypeText(object, tensor.dtype));
  dtype_ = known->dtype;
  // byte_offset: some producers align data and point to the first element by an offset.
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
  std::vector<std::int64_t> strides(shape_.size());
  std::int64_t compact = 1;
  // Null strides mean compact row-major order.
  for (std::size_t d = shape_.size(); d-- > 0;) {
    strides[d] = tensor.strides == nullptr ? compact : tensor.strides[d];
    compact *= shape_[d];
  }
  SetOrder(strides);
}

// Finds the stride of the folded matrix.
void Array::SetOrder(const std::vector<std::int64_t>& strides) {
  const std::int64_t cols = shape_.empty() ? 1 : shape_.back();
  stride_ = cols;
  if (size() == 0) return;
  bool ordered = shape_.empty() || cols == 1 || strides.back() == 1;
  std::int64_t expected = 0;  // of the next outer dimension; 0: any
  for (std::size_t d = shape_.size(); d-- > 0 && ordered;) {
    // The stride of a dimension of one element is never used, and may be anything.
    if (d + 1 == shape_.size() || shape_[d] == 1) continue;
    if (expected == 0) {
      // x (2, 3, 4) folds into 6 rows of 4 if the strides are (3 s, s, 1) for some s >= 4:
      // the innermost leading dimension sets s, each further one must continue it.
      stride_ = strides[d];
      ordered = stride_ >= cols;
    } else {
      ordered = strides[d] == expected;
    }
    expected = strides[d] * shape_[d];
  }
  if (!ordered) {
    ThrowInvalidInput(
        "{}: expected rows of consecutive values, found another memory order; nothing is copied "
        "silently, so pass numpy.ascontiguousarray(x) or x.contiguous()",
        name_);
  }
}

std::int64_t Array::size() const { return Product(shape_); }

MatrixView Array::View() const {
  MatrixView view = Fold(data_, dtype_, shape_);
  view.stride = stride_;
  return view;
}

ConstMatrixView Array::matrix() const { return View(); }

MatrixView Array::writable() const {
  if (read_only_) ThrowInvalidInput("{}: the array is read-only", name_);
  return View();
}

const void* Array::FlatData(DType dtype) const {
  const MatrixView view = View();
  // No conversion: the caller has asked for this memory, not for values.
  if (dtype_ != dtype) {
    ThrowInvalidInput("{}: expected {}, found {}", name_, TypeOf(dtype).name, TypeOf(dtype_).name);
  }
  if (view.rows > 1 && view.stride != view.cols) {
    ThrowInvalidInput("{}: expected consecutive rows; pass a contiguous array", name_);
  }
  return data_;
}

Array WithoutFloat64(const char* name, const py::object& object, DTypes types) {
  Array array(name, object, types);
  if (array.dtype() != DType::kF64) return array;
  // Row by row, since the rows of the source may be strided.
  const NewArray rounded = MakeArray(DType::kF32, array.shape());
  const ConstMatrixView from = array.matrix();
  for (std::int64_t r = 0; r < from.rows; ++r) {
    std::transform(from.Row<double>(r), from.Row<double>(r) + from.cols, rounded.view.Row<float>(r),
                   [](double value) { return static_cast<float>(value); });
  }
  return Array(name, rounded.object, types);
}

// dtype_ is the given dtype: torchao's arithmetic depends on it.
Floats::Floats(const char* name, const py::object& object)
    : array_(WithoutFloat64(name, object)), dtype_(Array(name, object, kFloatTypes).dtype()) {
  const auto widen = [&]<typename Half>(std::span<const Half> halves) {
    copy_.resize(halves.size());
    std::transform(halves.begin(), halves.end(), copy_.begin(),
                   [](Half value) { return ToFloat(value); });
    values_ = copy_;
  };
  if (array_.dtype() == DType::kF16) {
    widen(array_.Flat<Float16>());
  } else if (array_.dtype() == DType::kBF16) {
    widen(array_.Flat<BFloat16>());
  } else {
    values_ = array_.Flat<float>();
  }
}

py::object RoundedCopy(std::span<const float> values, DType dtype) {
  const NewArray out = MakeArray(dtype, {std::ssize(values)});
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    if (dtype == DType::kF16) {
      out.view.Row<Float16>(0)[i] = ToFloat16(values[i]);
    } else if (dtype == DType::kBF16) {
      out.view.Row<BFloat16>(0)[i] = ToBFloat16(values[i]);
    } else {
      out.view.Row<float>(0)[i] = values[i];
    }
  }
  return out.object;
}

py::object ToPython(void* data, DType dtype, std::vector<std::int64_t> shape,
                    std::shared_ptr<const void> owner, bool read_only) {
  if (dtype == DType::kBF16) return py::cast(Tensor(data, std::move(shape), std::move(owner)));
  const py::capsule base(new std::shared_ptr<const void>(std::move(owner)), [](void* pointer) {
    delete static_cast<std::shared_ptr<const void>*>(pointer);
  });
  py::array array(py::dtype(TypeOf(dtype).name), std::move(shape), data, base);
  // Tables of the program are constants in read-only memory: a write would end the process.
  if (read_only) array.attr("setflags")(py::arg("write") = false);
  return array;
}

NewArray MakeArray(DType dtype, std::vector<std::int64_t> shape) {
  if (dtype != DType::kBF16) {
    py::array array(py::dtype(TypeOf(dtype).name), shape);
    return {array, Fold(array.mutable_data(), dtype, shape)};
  }
  // Not initialised: the caller fills the new array.
  const std::shared_ptr<BFloat16[]> memory(new BFloat16[Product(shape)]);
  const MatrixView view = Fold(memory.get(), dtype, shape);
  return {ToPython(memory.get(), dtype, std::move(shape), memory), view};
}

NewArray OutputArray(const py::object& out, DType dtype, std::vector<std::int64_t> shape) {
  if (out.is_none()) return MakeArray(dtype, std::move(shape));
  const Array array("out", out, kResultTypes);
  if (array.shape() != shape) {
    ThrowInvalidInput("out: expected shape {}, found {}", ShapeText(shape),
                      ShapeText(array.shape()));
  }
  // The object itself is returned, as numpy functions return their `out`.
  if (array.dtype() != dtype) {
    ThrowInvalidInput("out: expected {}, found {}", TypeOf(dtype).name, TypeOf(array.dtype()).name);
  }
  return {out, array.writable()};
}

std::string NameOfDType(const char* argument, const py::object& dtype) {
  const std::string text = py::str(dtype);
  if (py::isinstance<py::dtype>(dtype)) return py::str(dtype.attr("name"));
  // numpy.float32 is a class.
  if (py::isinstance<py::type>(dtype)) return py::str(dtype.attr("__name__"));
  // str(torch.float32) is "torch.float32".
  if (text.starts_with("torch.")) return text.substr(6);
  if (py::isinstance<py::str>(dtype)) return text;
  throw py::type_error(fmt::format("{}: expected a dtype or its name, found {}", argument,
                                   py::type::of(dtype).attr("__name__").cast<std::string>()));
}

DType ParseDType(const py::object& dtype) {
  const std::string name = NameOfDType("dtype", dtype);
  for (const DType known : kResultTypes) {
    if (name == TypeOf(known).name) return known;
  }
  ThrowType("dtype", kResultTypes, name);
}

void BindTensor(py::module_& module) {
  py::class_<Tensor>(module, "Tensor",
                     "A bfloat16 array, which numpy has no type for. torch.from_dlpack(t) views it "
                     "without a copy.")
      .def(py::init(&TensorOfValues), py::arg("values"),
           "Values of any float dtype, rounded to bfloat16 (nearest, ties to even) in a copy; "
           "float64 is rounded to float32 first. Raises Error: another dtype.")
      .def_property_readonly("shape", &Tensor::shape, "tuple of int")
      .def_property_readonly(
          "dtype", [](const Tensor&) { return "bfloat16"; }, "\"bfloat16\"")
      .def("__repr__",
           [](const Tensor& t) {
             return "<Tensor of bfloat16 " + std::string(py::str(t.shape())) + ">";
           })
      .def(
          "__array__",
          [](const Tensor& t, const py::object& dtype, const py::object& copy) {
            return NumpyCopy([&] { return t.Float(); }, dtype, copy);
          },
          py::arg("dtype") = py::none(), py::arg("copy") = py::none(),
          "The values as float32, for numpy.asarray.")
      .def(py::pickle([](const Tensor& t) { return t.Bits(); }, &TensorOfBits))
      .def("bits", &Tensor::Bits, "The upper halves of the float32 values: a uint16 view.")
      .def("float", &Tensor::Float, "A float32 copy as a numpy array.")
      .def(
          "__dlpack__", [](const Tensor& t, const py::object&) { return t.Dlpack(); },
          py::arg("stream") = py::none(), "The DLPack capsule that torch.from_dlpack takes.")
      .def("__dlpack_device__", [](const Tensor&) { return std::pair<int, int>(kDLCPU, 0); });
}

}  // namespace qlora::python
