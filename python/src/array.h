// Arrays of Python as views: numpy arrays through the buffer protocol, other objects (PyTorch
// tensors ...) through DLPack. Nothing is copied in either direction.
#ifndef QLORA_PYTHON_ARRAY_H_
#define QLORA_PYTHON_ARRAY_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "qlora/tensor.h"

namespace qlora::python {

namespace py = pybind11;

// The element types that a call takes.
using DTypes = std::initializer_list<DType>;
inline constexpr DTypes kFloatTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
// Of what a layer computes on, and of what it keeps.
inline constexpr DTypes kActivationTypes = {DType::kF32, DType::kBF16, DType::kF64};
inline constexpr DTypes kParameterTypes = {DType::kF32, DType::kF64};
// Of what is decoded or computed.
inline constexpr DTypes kResultTypes = {DType::kF32, DType::kBF16, DType::kF16};

// A borrowed array of Python in row-major order: every dimension contiguous but the rows of a
// matrix, which may be strided.
class Array {
 public:
  // Errors (InvalidInput): no array, not on the CPU, an element type that is not in `types`, a
  // memory order that would need a copy.
  Array(const char* name, const py::object& object, DTypes types);

  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size() const;

  // Returns (product of the leading dimensions, last dimension); one dimension of n values is (1,
  // n).
  ConstMatrixView matrix() const;
  // Returns the matrix to write to. Errors (InvalidInput): read-only memory.
  MatrixView writable() const;
  // Returns all values in a row. Errors (InvalidInput): another dtype; strided rows.
  template <typename T>
  std::span<const T> Flat() const {
    return {static_cast<const T*>(FlatData(kDTypeOf<T>)), static_cast<std::size_t>(size())};
  }
  const void* FlatData(DType dtype) const;

 private:
  void ReadNumpy(const py::array& array, DTypes types);
  void ReadDlpack(const py::object& object, DTypes types);
  void SetOrder(const std::vector<std::int64_t>& strides);
  MatrixView View() const;

  std::string name_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  std::vector<std::int64_t> shape_;
  std::int64_t stride_ = 0;  // elements between the rows of the matrix
  bool read_only_ = false;
  py::object owner_;
};

// Errors (InvalidInput): an array of numpy that is not what its memory shows: with a mask, which
// says that some values are none, or in the byte order of another machine, as files have it.
void CheckIsPlain(const std::string& name, const py::array& array);

// Returns the array itself; of float64, a copy that is rounded to float32 (nearest, ties to even),
// the type that is computed in. Values beyond float32 become Inf.
Array WithoutFloat64(const char* name, const py::object& object, DTypes types = kFloatTypes);

// Values of any float type as consecutive float32: in place, or a copy, exact but for float64,
// which is rounded as above.
class Floats {
 public:
  Floats(const char* name, const py::object& object);
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  DType dtype() const { return dtype_; }  // as given
  const std::vector<std::int64_t>& shape() const { return array_.shape(); }
  std::span<const float> values() const { return values_; }

 private:
  Array array_;
  DType dtype_;
  std::vector<float> copy_;
  std::span<const float> values_;
};

// Returns float32 values as an array of a 16-bit type, or of float32.
py::object RoundedCopy(std::span<const float> values, DType dtype);

// Returns an array of this library's memory for Python. Float32, float16 and integers are numpy
// arrays; bfloat16, which numpy lacks, is a Tensor.
py::object ToPython(void* data, DType dtype, std::vector<std::int64_t> shape,
                    std::shared_ptr<const void> owner, bool read_only = false);

// A fresh array and the view to fill it by.
struct NewArray {
  py::object object;
  MatrixView view;  // leading dimensions folded into rows
};
NewArray MakeArray(DType dtype, std::vector<std::int64_t> shape);

// Returns `out` checked against shape and dtype, or a fresh array when it is None.
NewArray OutputArray(const py::object& out, DType dtype, std::vector<std::int64_t> shape);

// What __array__ returns: make(), a new array, in `dtype` unless that is None. Errors
// (InvalidInput): copy is False, numpy's word for an array that shares memory.
template <typename Make>
py::object NumpyCopy(const Make& make, const py::object& dtype, const py::object& copy) {
  if (copy.ptr() == Py_False) {
    ThrowInvalidInput("copy: values are decoded into a new array; leave out copy=False");
  }
  py::object values = make();
  return dtype.is_none() ? values : values.attr("astype")(dtype, py::arg("copy") = false);
}

// Returns "float32, bfloat16 or float16".
std::string NamesOf(DTypes types);
// Returns "(2, 3)".
std::string ShapeText(const std::vector<std::int64_t>& shape);

// The name of a dtype: of "float32", numpy.float32, torch.float32 ... "float32". Throws TypeError:
// something else.
std::string NameOfDType(const char* argument, const py::object& dtype);
// The same -> F32, BF16 or F16.
DType ParseDType(const py::object& dtype);

void BindTensor(py::module_& module);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_ARRAY_H_
