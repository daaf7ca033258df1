#include "convert/calibration.h"

#include <algorithm>
#include <type_traits>

#include "backend/backend.h"
#include "base/check.h"
#include "data/dataset.h"
#include "model/decoder.h"
#include "model/evaluate.h"
#include "model/setup.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

constexpr std::int64_t kMaxLength = 512;  // tokens of a sample, which bounds the memory of a pass
constexpr std::int64_t kColumnsPerTask = 256;

// Sums of squares of the input channels of every group of linears.
class ChannelSums {
 public:
  explicit ChannelSums(Context& context) : context_(context) {}

  // Each column is summed in the order of the rows, so the result does not depend on threads.
  void Add(std::int64_t layer, LinearGroup group, const ConstMatrixView& x) {
    std::vector<double>& sums = sums_[{layer, group}];
    sums.resize(x.cols);
    const std::int64_t tasks = (x.cols + kColumnsPerTask - 1) / kColumnsPerTask;
    context_.ParallelFor(tasks, [&](std::int64_t task, int) {
      const std::int64_t begin = task * kColumnsPerTask;
      const std::int64_t count = std::min(kColumnsPerTask, x.cols - begin);
      for (std::int64_t n = 0; n < x.rows; ++n) {
        if (x.dtype == DType::kBF16) {
          AddSquares(x.Row<BFloat16>(n) + begin, count, sums.data() + begin);
        } else {
          AddSquares(x.Row<float>(n) + begin, count, sums.data() + begin);
        }
      }
    });
  }

  std::vector<float> Means(std::int64_t layer, LinearGroup group, std::int64_t rows) const {
    std::vector<float> means;
    for (const double sum : sums_.at({layer, group})) {
      means.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    }
    return means;
  }

 private:
  template <typename T>
  static void AddSquares(const T* x, std::int64_t count, double* sums) {
    for (std::int64_t i = 0; i < count; ++i) {
      float value;
      if constexpr (std::is_same_v<T, float>) {
        value = x[i];
      } else {
        value = ToFloat(x[i]);
      }
      sums[i] += double{value} * double{value};
    }
  }

  Context& context_;
  std::map<std::pair<std::int64_t, LinearGroup>, std::vector<double>> sums_;
};

Dataset OpenText(Context& context, const std::string& file, const DecoderConfig& config,
                 const Tokenizer& tokenizer) {
  DataOptions options;
  options.sources.push_back(ParseDataSource(file));
  options.max_length = std::min(kMaxLength, config.max_position_embeddings);
  options.over_long = OverLong::kTruncate;
  options.vocab_size = config.vocab_size;
  return Dataset::Open(options, tokenizer, nullptr, &context);
}

}  // namespace

Calibration Calibrate(Context& context, const std::filesystem::path& model_dir,
                      const DecoderConfig& config, const std::string& data,
                      std::int64_t max_tokens) {
  if (max_tokens < 1) {
    ThrowInvalidInput("calibration_tokens must be positive, found {}", max_tokens);
  }
  const Tokenizer tokenizer = Tokenizer::Load(model_dir);
  const Dataset dataset = OpenText(context, data, config, tokenizer);
  LoadOptions load;
  load.load_in_4bit = false;
  const Precision precision = ParsePrecision("auto");
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, precision.activation);
  const DecoderWeights weights = LoadWeights(context, *backend, model_dir, config, load);
  Decoder decoder(*backend, config, weights, nullptr, precision, kMaxLength);
  ChannelSums sums(context);
  decoder.Observe(
      [&](std::int64_t layer, LinearGroup group, ConstMatrixView x) { sums.Add(layer, group, x); });

  const std::int64_t most_rows = EvalRows(dataset.report().longest);
  backend->Reserve(LimitsOf(config, nullptr, most_rows, HeadRows(*backend, config, most_rows)));
  const Arena arena(EvalMemory::Bytes(*backend, config, nullptr, precision, most_rows));
  EvalMemory memory(decoder, arena);
  Calibration result;
  std::vector<Sample> samples;
  std::int64_t rows = 0;
  const auto flush = [&] {
    const Batch batch = MakeBatch(samples);
    decoder.Forward(batch, {}, memory.ForRows(batch.rows()));
    samples.clear();
    rows = 0;
  };
  for (std::int64_t i = 0; i < dataset.size() && result.tokens < max_tokens; ++i) {
    const std::int64_t length = dataset.length(i);
    if (rows + length > most_rows) flush();
    samples.push_back(dataset.Get(i));
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
    for (const FrozenLinear& linear : linears.qkv) add(linear, LinearGroup::kQkv);
    add(linears.o, LinearGroup::kO);
    for (const FrozenLinear& linear : linears.gate_up) add(linear, LinearGroup::kGateUp);
    for (const FrozenLinear& linear : linears.down) add(linear, LinearGroup::kDown);
  }
  return result;
}

}  // namespace qlora
