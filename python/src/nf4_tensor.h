// A 4-bit matrix as Python sees it.
#ifndef QLORA_PYTHON_NF4_TENSOR_H_
#define QLORA_PYTHON_NF4_TENSOR_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qlora/nf4.h"

namespace qlora::python {

struct NF4Tensor {
  QuantizedMatrix matrix;
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
  QuantizeOptions ToOptions() const;
};

ScaleType ParseScaleType(const std::string& name);
EncodeRule ParseRule(const std::string& name);

void BindNf4(pybind11::module_& module);
void BindLinear(pybind11::module_& module);

}  // namespace qlora::python

#endif  // QLORA_PYTHON_NF4_TENSOR_H_
