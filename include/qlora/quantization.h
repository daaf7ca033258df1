// How the linears of a model are held in 4 bits, as users say it: the same keys for every verb that
// quantizes, on load or into a file.
#ifndef QLORA_QUANTIZATION_H_
#define QLORA_QUANTIZATION_H_

#include <cstdint>
#include <string>

#include "qlora/options.h"

namespace qlora {

struct QuantizationFields {
  std::string bnb_4bit_quant_type = "nf4";
  bool bnb_4bit_use_double_quant = true;
  std::int64_t bnb_4bit_blocksize = 64;
  bool scale_search = false;  // pick scales that minimise the squared error

  void Declare(OptionTable& table);
};

}  // namespace qlora

#endif  // QLORA_QUANTIZATION_H_
