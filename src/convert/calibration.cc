#include "convert/calibration.h"

#include <algorithm>

#include "base/check.h"
#include "data/dataset.h"
#include "inference/dataset_evaluation.h"
#include "model/weights.h"
#include "pass/decoder.h"
#include "pass/eval_memory.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

constexpr std::int64_t kMaxLength = 512;  // tokens of a sample, which bounds the memory of a pass

// Sums of squares of the input channels of every group of linears, in the memory of the backend.
class ChannelSums {
 public:
  explicit ChannelSums(Backend& backend) : backend_(backend) {}

  void Add(std::int64_t layer, LinearGroup group, const ConstMatrixView& x) {
    Arena& sums = sums_[{layer, group}];
    // An arena begins with zeros. float64, since a channel sums over all tokens.
    if (sums.bytes() == 0) sums = Arena(BytesOf(DType::kF64, x.cols), backend_.memory());
    backend_.Run(ops::ColumnSquares{x, {sums.data(), DType::kF64, 1, x.cols, x.cols}});
  }

  std::vector<float> Means(std::int64_t layer, LinearGroup group, std::int64_t rows) const {
    const Arena& arena = sums_.at({layer, group});
    std::vector<double> sums(arena.bytes() / sizeof(double));
    backend_.memory().Download(arena.data(), sums.data(), arena.bytes());
    std::vector<float> means;
    for (const double sum : sums) {
      means.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    }
    return means;
  }

 private:
  Backend& backend_;
  std::map<std::pair<std::int64_t, LinearGroup>, Arena> sums_;
};

Dataset OpenText(Context& context, const std::string& file, const DecoderConfig& config,
                 const Tokenizer& tokenizer) {
  DataOptions options;
  options.sources.push_back(ParseDataSource(file));
  options.max_length = std::min(kMaxLength, config.max_position_embeddings);
  // The beginning of a long text has activations like the rest: nothing is gained by dropping it.
  options.over_long = OverLong::kTruncate;
  options.vocab_size = config.vocab_size;
  return Dataset::Open(options, tokenizer, nullptr, &context);
}

}  // namespace

Calibration Calibrate(Context& context, Backend& backend, const std::filesystem::path& model_dir,
                      const DecoderConfig& config, const std::string& data, std::int64_t max_tokens,
                      const ProgressFn& progress) {
  // Without a token the means would be 0 / 0.
  if (max_tokens < 1) {
    ThrowInvalidInput("calibration_tokens must be positive, found {}", max_tokens);
  }
  const Tokenizer tokenizer = Tokenizer::Load(model_dir);
  const Dataset dataset = OpenText(context, data, config, tokenizer);
  LoadOptions load;
  // The activations of the weights to be quantized, not of an earlier quantization; in float32, so
  // that no rounding of the pass enters the statistics.
  load.load_in_4bit = false;
  constexpr Precision precision{DType::kF32, DType::kF32};
  const DecoderWeights weights = LoadWeights(context, backend, model_dir, config, load);
  const Decoder decoder(backend, config, weights, precision, kMaxLength);
  ChannelSums sums(backend);
  const InputObserver observer = [&](std::int64_t layer, LinearGroup group, ConstMatrixView x) {
    sums.Add(layer, group, x);
  };

  const std::int64_t most_rows = EvalRows(dataset.report().largest);
  Arena memory = ReserveEvaluation(decoder, {}, most_rows);
  EvalMemory passes(decoder, {}, memory);
  Calibration result;
  std::vector<Sample> samples;
  std::int64_t rows = 0;
  const auto flush = [&] {
    const Batch batch = MakeBatch(samples);
    Activations& activations = passes.ForRows(batch.rows());
    Forward(decoder, PrepareInputs(decoder, batch, {}, activations), activations, observer);
    samples.clear();
    rows = 0;
    if (progress) progress(result.tokens, max_tokens);
  };
  for (std::int64_t i = 0; i < dataset.size() && result.tokens < max_tokens; ++i) {
    const std::int64_t length =
        std::min<std::int64_t>(dataset.length(i), max_tokens - result.tokens);
    // Passes hold as many samples as the memory was reserved for.
    if (rows + length > most_rows) flush();
    Sample& sample = samples.emplace_back(dataset.Get(i));
    sample.ids.resize(length);
    sample.labels.resize(length);
    rows += length;
    result.tokens += length;
  }
  flush();

  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const auto add = [&](const FrozenLinear& linear, LinearGroup group) {
      result.mean_squares[linear.path + ".weight"] =
          sums.Means(static_cast<std::int64_t>(l), group, result.tokens);
    };
    const PerLinear<FrozenLinear>& linears = weights.layers[l].linears;
    // Linears of a group read one x, so they share one set of means.
    for (const LinearGroup group : kLinearGroups) {
      for (const FrozenLinear& linear : GroupOf(linears, group)) add(linear, group);
    }
  }
  return result;
}

}  // namespace qlora
