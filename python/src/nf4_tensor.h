// A 4-bit matrix as Python sees it, and the functions about it that the files of the module share.
#ifndef QLORA_PYTHON_NF4_TENSOR_H_
#define QLORA_PYTHON_NF4_TENSOR_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/nf4_compat.h"
#include "shared_context.h"

namespace qlora::python {

struct NF4Tensor {
  compat::Matrix matrix;
  std::vector<std::int64_t> shape;  // before quantization; the leading dimensions fold into rows
};

// The options that quantize() and QLoraLinear take by name; `importance` is borrowed.
struct QuantizeArguments {
  std::string quant_type = "nf4";
  std::int64_t block_size = 64;
  std::string scale_type = "double_bnb";
  std::int64_t scaler_block_size = 256;
  std::string rule = "cpu";
  bool scale_search = false;
  bool row_blocks = false;
  bool zero_point = false;
  std::string name = {};

  // Errors (InvalidInput): a word that names nothing.
  compat::Options ToOptions() const;
};

// Errors (InvalidInput): a word that names nothing.
QuantType ParseQuantType(const std::string& name);
compat::ScaleForm ParseScaleForm(const std::string& name);
compat::EncodeRule ParseRule(const std::string& name);

// Returns the type of one stored scale.
DType ScaleDType(compat::ScaleForm form);

// w: any shape. importance: float32 by column, or None.
NF4Tensor QuantizeArray(const pybind11::object& w, const QuantizeArguments& arguments,
                        const pybind11::object& importance, const ContextPtr& context);

// The arrays of a tensor, as NF4Tensor.from_arrays() takes them.
struct TensorParts {
  pybind11::object quantized_data;
  pybind11::object scalers;  // floats, or codes of uint8 (bitsandbytes) or int8 (torchao)
  std::vector<std::int64_t> shape;
  std::int64_t block_size = 64;
  std::string quant_type = "nf4";
  pybind11::object nested_scalers = pybind11::none();  // for codes only
  pybind11::object nested_code = pybind11::none();     // for uint8 codes: the value of each
  float offset = 0;
  std::int64_t scaler_block_size = 256;
  pybind11::object nf4 = pybind11::none();  // the value of each code; None: of quant_type
  pybind11::object zero_point = pybind11::none();
  bool row_blocks = false;
};

// Returns a tensor that keeps the arrays. Errors (InvalidInput): other dtypes or sizes.
NF4Tensor FromArrays(const TensorParts& parts);
// Returns the parts by name, and the tensor that they make.
pybind11::dict ToDict(const NF4Tensor& t);
NF4Tensor FromDict(const pybind11::dict& parts);

// Returns the values in `dtype`, or in `out` when that is not None.
pybind11::object DequantizeTensor(const NF4Tensor& t, const pybind11::object& dtype,
                                  const pybind11::object& out, const ContextPtr& context);

// Returns `count` values of a tensor as an array of one dimension that keeps the memory of the
// tensor.
pybind11::object Field(const NF4Tensor& t, const void* data, DType dtype, std::int64_t count);
pybind11::object PackedCodes(const NF4Tensor& t);

void BindNf4Tensor(pybind11::module_& module);
void BindQuantize(pybind11::module_& module);
void BindScales(pybind11::module_& module);
void BindLinear(pybind11::module_& module);
void BindGguf(pybind11::module_& module);
void BindTrain(pybind11::module_& module);
void BindModel(pybind11::module_& module);
void BindJobs(pybind11::module_& module);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_NF4_TENSOR_H_
