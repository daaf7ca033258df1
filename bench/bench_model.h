// The shapes of models with random weights (bench_weights.h), for measurements of whole models.
#ifndef QLORA_BENCH_BENCH_MODEL_H_
#define QLORA_BENCH_BENCH_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "backend/ops.h"
#include "config/config.h"
#include "qlora/options.h"

namespace qlora::bench {

struct ModelBenchOptions {
  std::string shape;  // of a well-known model, in the place of the sizes below; or ""
  // TinyLlama-1.1B, unless said otherwise.
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 5632;
  std::int64_t num_hidden_layers = 0;  // 0: all of the shape, or 22
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t vocab_size = 32000;
  std::int64_t lora_r = 16;
  bool load_in_4bit = true;
  // Of the linears: nf4, or blocks of ggml by their names: "Q4_K".
  std::vector<std::string> weight_formats = {"nf4"};
  std::string compute_dtype = "auto";
  bool int8_backward = false;   // of steps
  std::string device = "auto";  // or "cpu"

  void Declare(OptionTable& table);
  std::int64_t LayersWithoutShape() const {
    return num_hidden_layers == 0 ? 22 : num_hidden_layers;
  }
  // Returns "L22 D2048 F5632", or the name, with the number of layers where it is given: "LFM2-1.2B
  // L8".
  std::string ShapeText() const;
  // Returns weight_formats, or "bf16" without load_in_4bit.
  std::vector<std::string> Formats() const;
  // Returns `base`, the text of a shape, with the format, where formats were asked for.
  std::string ShapeOf(const std::string& base, const std::string& format) const;
};

// Of the operands of products with weights of a format: 8 bits, or the type of activations.
DType OperandType(const Precision& precision, const std::string& format);

// Errors: InvalidInput for heads that do not divide the hidden size, an unknown name and more
// layers than the model of that name has.
DecoderConfig ConfigOf(const ModelBenchOptions& options, std::int64_t max_positions);

// Adapters of rank lora_r on the linears that training adapts without other options.
LoraAdapter RandomAdapter(const ModelBenchOptions& options, const DecoderConfig& config,
                          Memory& memory);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_MODEL_H_
