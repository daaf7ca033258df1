// The error of quantized weights, for each kind of linear: one number for the model would hide a
// bad kind.
#ifndef QLORA_CONVERT_ROUNDING_ERRORS_H_
#define QLORA_CONVERT_ROUNDING_ERRORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/quantize.h"
#include "qlora/tensor.h"

namespace qlora {

class RoundingErrors {
 public:
  // name: of the weight, "model.layers.3.mlp.up_proj.weight", whose kind is "up_proj". Both (O, I).
  void Add(Context& context, const std::string& name, const ConstMatrixView& original,
           const QuantizedView& quantized);
  // By name.
  std::vector<QuantizeError> Kinds() const;

 private:
  // Sums of squares over the tensors of one kind.
  struct Sums {
    std::int64_t tensors = 0;
    std::int64_t values = 0;
    double squared_error = 0;
    double squared_value = 0;
    double max_error = 0;
  };
  std::map<std::string, Sums> kinds_;
};

}  // namespace qlora

#endif  // QLORA_CONVERT_ROUNDING_ERRORS_H_
