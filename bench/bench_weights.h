// The weights of models with random values, for measurements of whole models.
#ifndef QLORA_BENCH_BENCH_WEIGHTS_H_
#define QLORA_BENCH_BENCH_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "ggml/block_format.h"
#include "pass/decoder.h"
#include "qlora/context.h"

namespace qlora::bench {

// Returns the blocks of that name, nullptr for "nf4". Errors: InvalidInput for a format that is not
// written here, and for rows of `cols` values that are no whole blocks.
const BlockFormatInfo* ParseBlocks(const std::string& format, std::int64_t cols);

// Returns the format of the linear at `path` in a model of `format`: experts that are published in
// MXFP4 (gpt-oss) have it in a model in NF4, as checkpoints are loaded.
std::string FormatOf(const DecoderConfig& config, std::string_view path, const std::string& format);

// Pseudo-random weights of a plausible size in the memory of a backend; times do not depend on
// values.
class RandomModel {
 public:
  // format: of ModelBenchOptions::Formats. use: kGeneration prepacks the weights.
  RandomModel(Context& context, Backend& backend, const DecoderConfig& config,
              const std::string& format, WeightUse use);

  // The sizes of such a model, which is not made: `owned` and `quantized`.
  static WeightSizes Plan(Context& context, Backend& backend, const DecoderConfig& config,
                          const std::string& format, WeightUse use);

  const DecoderWeights& get() const { return weights_; }

 private:
  struct Counted {};
  // Counts the bytes alone.
  RandomModel(Counted, Context& context, Backend& backend, const DecoderConfig& config,
              const std::string& format, WeightUse use);
  // Returns rows [first, first + rows) of a matrix of `cols` columns in host memory.
  std::vector<BFloat16> Values(std::int64_t first, std::int64_t rows, std::int64_t cols) const;
  void Layout(Carver& carver);
  LayerWeights Layer(std::int64_t l);
  ConstMatrixView Dense(std::int64_t rows, std::int64_t cols);
  ConstMatrixView Ones(std::int64_t size);
  ConstMatrixView Constant(std::int64_t rows, std::int64_t cols, float value);
  // Values of a normal size for what a layer has beside its linears.
  void AddNorms(std::int64_t l, LayerWeights& layer);
  void AddState(Mixer mixer, LayerWeights& layer);
  void AddBiases(std::int64_t l, LayerWeights& layer);
  void AddExperts(LayerWeights& layer);
  void AddSideExperts(SideWeights& side);
  WeightView Weight(const std::string& format, const LinearShape& shape);
  WeightView Blocks(const BlockFormatInfo& info, const LinearShape& shape);

  Context& context_;
  Backend& backend_;
  const DecoderConfig& config_;  // of the constructor alone
  const std::string format_;
  WeightUse use_;
  std::vector<BFloat16> values_;  // in [-1, 1), read over and over from varying places
  // (V', L*P) in host memory, or empty. Its zeros are never written, so that it takes addresses and
  // no memory.
  Arena per_layer_table_;
  Carver* carver_ = nullptr;
  std::size_t bytes_ = 0;
  Arena arena_;
  DecoderWeights weights_;
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_WEIGHTS_H_
