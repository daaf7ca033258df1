#include "model/quantization.h"

#include "base/check.h"
#include "qlora/options.h"

namespace qlora {

// Shared by training, generation and conversion.
void QuantizationFields::Declare(OptionTable& table) {
  Option& type = table.Choice("bnb_4bit_quant_type", &bnb_4bit_quant_type, {"nf4", "fp4"},
                              "4-bit codebook", {"quant_type"});
  type.hint = "types of GGUF files are those of `qlora export --outtype`";
  table.Add("bnb_4bit_use_double_quant", &bnb_4bit_use_double_quant,
            "double quantization: quantize the scales too (4.13 instead of 4.5 bits per weight)",
            {"use_double_quant", "double_quantization", "use_bnb_nested_quant"});
  table.Add("bnb_4bit_blocksize", &bnb_4bit_blocksize, "number of weights that share a scale",
            {"blocksize", "block_size"});
  table.Add("scale_search", &scale_search,
            "choose each scale for the least squared error of its block (same format, less error)");
}

QuantizeOptions ParseQuantizeOptions(const QuantizationFields& fields) {
  const std::string& quant_type = fields.bnb_4bit_quant_type;
  const std::int64_t block_size = fields.bnb_4bit_blocksize;
  QuantizeOptions options;
  if (quant_type == "fp4") {
    options.type = QuantType::kFp4;
  } else if (quant_type != "nf4") {
    ThrowInvalidInput("bnb_4bit_quant_type expects nf4 or fp4, found '{}'", quant_type);
  }
  // Double quantization: the scales are codes of 8 bits, which have scales again.
  options.scale_type = fields.bnb_4bit_use_double_quant ? ScaleType::kDoubleBnb : ScaleType::kF32;
  const bool power_of_two = block_size > 0 && (block_size & (block_size - 1)) == 0;
  if (!power_of_two || block_size < 32 || block_size > 4096) {
    ThrowInvalidInput("bnb_4bit_blocksize expects a power of two from 32 to 4096, found {}",
                      block_size);
  }
  options.block_size = block_size;
  options.scale_search = fields.scale_search;
  return options;
}

}  // namespace qlora
