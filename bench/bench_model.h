// Models with random weights, for measurements of whole models.
#ifndef QLORA_BENCH_BENCH_MODEL_H_
#define QLORA_BENCH_BENCH_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/arena.h"
#include "ggml/block_format.h"
#include "pass/decoder.h"
#include "qlora/context.h"
#include "qlora/options.h"

namespace qlora::bench {

struct ModelBenchOptions {
  std::string shape;  // of a well-known model, in the place of the sizes below; or ""
  // TinyLlama-1.1B, unless said otherwise.
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 5632;
  std::int64_t num_hidden_layers = 22;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 4;
  std::int64_t vocab_size = 32000;
  std::int64_t lora_r = 16;
  bool load_in_4bit = true;
  // Of the linears: nf4, or blocks of ggml by their names: "Q4_K".
  std::vector<std::string> weight_formats = {"nf4"};
  std::string compute_dtype = "auto";
  std::string device = "auto";  // cpu, cuda

  void Declare(OptionTable& table);
  // Returns "L22 D2048 F5632", or the name.
  std::string ShapeText() const;
  // Returns weight_formats, or "bf16" without load_in_4bit.
  std::vector<std::string> Formats() const;
  // Returns `base`, the text of a shape, with the format, where formats were asked for.
  std::string ShapeOf(const std::string& base, const std::string& format) const;
};

// Returns the blocks of that name, nullptr for "nf4". Errors: InvalidInput for a format that is not
// written here, and for rows of `cols` values that are no whole blocks.
const BlockFormatInfo* ParseBlocks(const std::string& format, std::int64_t cols);

// Errors: InvalidInput for heads that do not divide the hidden size, an unknown name and a model of
// experts.
DecoderConfig ConfigOf(const ModelBenchOptions& options, std::int64_t max_positions);

// Pseudo-random weights of a plausible size in the memory of a backend; times do not depend on
// values.
class RandomModel {
 public:
  // format: of ModelBenchOptions::Formats. use: kGeneration prepacks the weights. host_embedding:
  // DecoderWeights::host_embedding. Errors: InvalidInput for a format that the backend cannot read.
  RandomModel(Context& context, Backend& backend, const DecoderConfig& config,
              const std::string& format, WeightUse use, bool host_embedding = false);

  const DecoderWeights& get() const { return weights_; }
  // Returns the bytes of the linears of all layers, and of the output head.
  std::size_t linear_bytes() const { return linear_bytes_; }
  std::size_t head_bytes() const;

 private:
  // Returns the values of a matrix (rows, cols) in host memory.
  std::vector<BFloat16> Values(std::int64_t rows, std::int64_t cols) const;
  ConstMatrixView Dense(std::int64_t rows, std::int64_t cols);
  ConstMatrixView Ones(std::int64_t size);
  // Values of a normal size for what a layer has beside its linears.
  void AddNorms(const DecoderConfig& config, std::int64_t l, LayerWeights& layer);
  void AddState(const DecoderConfig& config, Mixer mixer, LayerWeights& layer);
  ConstMatrixView Constant(std::int64_t rows, std::int64_t cols, float value);
  WeightView Weight(const LinearShape& shape);
  WeightView Blocks(const BlockFormatInfo& info, const LinearShape& shape);

  Context& context_;
  Backend& backend_;
  const std::string format_;
  WeightUse use_;
  std::vector<BFloat16> values_;     // in [-1, 1), read over and over from varying places
  std::vector<BFloat16> embedding_;  // (V, D) in host memory, or empty
  Carver* carver_ = nullptr;
  std::size_t linear_bytes_ = 0;
  Arena arena_;
  DecoderWeights weights_;
};

// Adapters of rank lora_r on all linears of the blocks.
LoraAdapter RandomAdapter(const ModelBenchOptions& options, const DecoderConfig& config,
                          Memory& memory);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_MODEL_H_
