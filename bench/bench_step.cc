#include "bench/bench_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "base/memory_info.h"
#include "base/random.h"
#include "bench/bench_peak.h"
#include "model/setup.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace qlora::bench {
namespace {

DecoderConfig ConfigOf(const StepBenchOptions& o) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = o.vocab_size;
  c.hidden_size = o.hidden_size;
  c.intermediate_size = o.intermediate_size;
  c.num_hidden_layers = o.num_hidden_layers;
  c.num_attention_heads = o.num_attention_heads;
  c.num_key_value_heads = o.num_key_value_heads;
  if (o.num_attention_heads < 1 || o.num_key_value_heads < 1 ||
      o.hidden_size % o.num_attention_heads != 0 ||
      o.num_attention_heads % o.num_key_value_heads != 0) {
    ThrowInvalidInput(
        "hidden_size must be a multiple of num_attention_heads, and that one of "
        "num_key_value_heads");
  }
  c.head_dim = o.hidden_size / o.num_attention_heads;
  c.max_position_embeddings = o.max_length;
  c.rms_norm_eps = 1e-5f;
  c.attention_scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  RopeConfig rope;
  rope.rotary_dim = c.head_dim;
  c.ropes = {rope};
  c.layers.assign(static_cast<std::size_t>(c.num_hidden_layers), LayerConfig{});
  return c;
}

// Fills every weight with values of a plausible size; the time of a step does not depend on them.
class RandomModel {
 public:
  RandomModel(Context& context, const DecoderConfig& c, bool four_bit)
      : context_(context), four_bit_(four_bit) {
    const auto layout = [&](Carver& carver) {
      carver_ = &carver;
      weights_.layers.clear();
      weights_.embed = Dense(c.vocab_size, c.hidden_size);
      weights_.head = Dense(c.vocab_size, c.hidden_size);
      weights_.final_norm = Ones(c.hidden_size);
      for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
        LayerWeights layer;
        layer.linears = Combine(LinearPaths(c, l), ShapeLinears(c),
                                [&](const std::string& path, const LinearShape& shape) {
                                  return FrozenLinear{path, Weight(shape), {}};
                                });
        layer.input_norm = Ones(c.hidden_size);
        layer.mlp_norm = Ones(c.hidden_size);
        weights_.layers.push_back(std::move(layer));
      }
    };
    Carver plan;
    layout(plan);
    arena_ = Arena(plan.bytes());
    Carver carver(arena_);
    layout(carver);
  }

  const DecoderWeights& get() const { return weights_; }
  std::size_t bytes() const { return arena_.bytes(); }

 private:
  ConstMatrixView Dense(std::int64_t rows, std::int64_t cols) {
    const MatrixView m = carver_->Matrix(DType::kBF16, rows, cols);
    if (m.data == nullptr) return m;
    const float deviation = 1 / std::sqrt(static_cast<float>(cols));
    const RandomKey key = MakeKey(1, RandomPlace::kTest, place_++);
    context_.ParallelFor(rows, [&](std::int64_t r, int) {
      BFloat16* row = m.Row<BFloat16>(r);
      for (std::int64_t i = 0; i < cols; ++i) {
        const float u = RandomUniform(key, static_cast<std::uint64_t>(r * cols + i));
        row[i] = ToBFloat16(deviation * (2 * u - 1));
      }
    });
    return m;
  }

  ConstMatrixView Ones(std::int64_t size) {
    const MatrixView m = carver_->Matrix(DType::kF32, 1, size);
    if (m.data != nullptr) std::fill_n(m.Row<float>(0), size, 1.0f);
    return m;
  }

  // Random codes and scales: quantizing is not what is measured.
  WeightView Weight(const LinearShape& shape) {
    if (!four_bit_) return {Dense(shape.out, shape.in), {}};
    const QuantizeOptions options;
    const std::size_t bytes = StorageBytes(shape.out, shape.in, options);
    const MatrixView storage = carver_->Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
    if (storage.data == nullptr) return {};
    std::vector<BFloat16> dense(static_cast<std::size_t>(shape.out * shape.in));
    const float deviation = 1 / std::sqrt(static_cast<float>(shape.in));
    const RandomKey key = MakeKey(2, RandomPlace::kTest, place_++);
    context_.ParallelFor(shape.out, [&](std::int64_t r, int) {
      for (std::int64_t i = 0; i < shape.in; ++i) {
        const auto at = static_cast<std::size_t>(r * shape.in + i);
        dense[at] = ToBFloat16(deviation * (2 * RandomUniform(key, at) - 1));
      }
    });
    return {{},
            QuantizeInto(context_, MakeView(dense.data(), shape.out, shape.in), options,
                         {static_cast<std::byte*>(storage.data), bytes})};
  }

  Context& context_;
  bool four_bit_;
  Carver* carver_ = nullptr;
  std::uint64_t place_ = 0;
  Arena arena_;
  DecoderWeights weights_;
};

Batch RandomBatch(const DecoderConfig& config, const StepBenchOptions& options) {
  std::vector<Sample> samples;
  std::uint64_t draw = 0;
  for (std::int64_t s = 0; s < options.per_device_train_batch_size; ++s) {
    Sample sample;
    for (std::int64_t t = 0; t < options.max_length; ++t) {
      sample.ids.push_back(static_cast<std::int32_t>(RandomBelow(
          MakeKey(3, RandomPlace::kTest), draw++, static_cast<std::uint64_t>(config.vocab_size))));
    }
    sample.labels = sample.ids;
    samples.push_back(std::move(sample));
  }
  return MakeBatch(samples);
}

}  // namespace

void StepBenchOptions::Declare(OptionTable& table) {
  table.Section("Shape (default: TinyLlama-1.1B)");
  table.Add("hidden_size", &hidden_size, "D");
  table.Add("intermediate_size", &intermediate_size, "F");
  table.Add("num_hidden_layers", &num_hidden_layers, "layers");
  table.Add("num_attention_heads", &num_attention_heads, "query heads");
  table.Add("num_key_value_heads", &num_key_value_heads, "key and value heads");
  table.Add("vocab_size", &vocab_size, "rows of embedding and head");
  table.Section("Step");
  table.Add("lora_r", &lora_r, "rank on all seven linears");
  table.Add("max_length", &max_length, "tokens of a sequence");
  table.Add("per_device_train_batch_size", &per_device_train_batch_size, "sequences",
            {"batch_size"});
  table.Add("gradient_checkpointing", &gradient_checkpointing, "recompute each layer");
  table.Add("load_in_4bit", &load_in_4bit, "NF4 with double quantization; false: bfloat16");
  table.Choice("compute_dtype", &compute_dtype, {"auto", "float32", "bfloat16"},
               "operands of matrix products");
  table.Add("steps", &steps, "timed steps; the best counts");
}

double StepFlops(const DecoderConfig& config, std::int64_t lora_r, std::int64_t rows,
                 std::int64_t length, bool recompute) {
  const auto n = static_cast<double>(rows);
  double linear = 0;   // parameters of the linears of a layer
  double adapter = 0;  // parameters of their adapters
  ShapeLinears(config).ForEach([&](const LinearShape& shape) {
    linear += static_cast<double>(shape.out * shape.in);
    adapter += static_cast<double>(lora_r * (shape.out + shape.in));
  });
  const auto layers = static_cast<double>(config.num_hidden_layers);
  // Forward 2, gradient of the input 2, again forward 2 when recomputed; adapters also have the
  // gradients of A and B: 2.
  const double products =
      n * layers * (linear * (recompute ? 6 : 4) + adapter * (recompute ? 8 : 6));
  // Causal attention of one sequence: q k^T and p v are 2 T^2 H K each, halved by the mask;
  // backward has five such products.
  const double pairs = n * static_cast<double>(length) * static_cast<double>(config.q_features());
  const double attention = layers * pairs * (recompute ? 2 + 2 + 5 : 2 + 5);
  const double head =
      4 * n * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  return products + attention + head;
}

std::vector<BenchRow> BenchStep(Context& context, const StepBenchOptions& options) {
  const DecoderConfig config = ConfigOf(options);
  const Precision precision = ParsePrecision(options.compute_dtype);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, precision.activation);
  const RandomModel model(context, config, options.load_in_4bit);
  AdapterConfig adapter_config;
  adapter_config.r = options.lora_r;
  adapter_config.lora_alpha = static_cast<double>(2 * options.lora_r);
  adapter_config.target_modules = std::string("all-linear");
  LoraAdapter adapter = LoraAdapter::Create(adapter_config, config, 1);
  adapter.AllocateGradients();
  AdamState adam(adapter);

  const Batch batch = RandomBatch(config, options);
  const Recompute level = options.gradient_checkpointing ? Recompute::kLayer : Recompute::kNone;
  const ActivationNeeds needs{
      batch.rows(), 0,
      std::vector<Recompute>(static_cast<std::size_t>(config.num_hidden_layers), level)};
  backend->Reserve(LimitsOf(config, &adapter, batch.rows(), HeadChunkRows(config, batch.rows())));
  const Arena memory(ActivationBytes(config, adapter, precision, needs));
  const Decoder decoder(*backend, config, model.get(), &adapter, precision, options.max_length);
  StepOptions step_options;
  step_options.recompute = needs.recompute;
  step_options.max_grad_norm = 1;

  double best = 1e30;
  for (std::int64_t s = 0; s <= options.steps; ++s) {
    const auto start = std::chrono::steady_clock::now();
    TrainStep(*backend, decoder, step_options, {&batch, 1}, 1e-4, s, static_cast<std::uint64_t>(s),
              memory, adam);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (s > 0) best = std::min(best, seconds);  // the first one warms up
  }
  const double peak = MeasurePeakFlops(context, precision.activation);
  const double flops = StepFlops(config, options.lora_r, batch.rows(), options.max_length,
                                 options.gradient_checkpointing);
  const std::string shape =
      fmt::format("L{} D{} F{} r{} {}x{}{}", config.num_hidden_layers, config.hidden_size,
                  config.intermediate_size, options.lora_r, options.per_device_train_batch_size,
                  options.max_length, options.gradient_checkpointing ? " checkpointed" : "");
  const char* dtype = precision.activation == DType::kBF16 ? "bf16" : "f32";
  const auto tokens = static_cast<double>(batch.rows());
  const auto row = [&](const char* op, double value, const char* unit, double limit,
                       const char* limit_kind) {
    return BenchRow{op,    shape, dtype, context.threads(), best,
                    value, unit,  limit, limit_kind,        limit > 0 ? value / limit : 0};
  };
  return {row("step", tokens / best, "tokens/s", peak / flops * tokens, "peak multiply-adds"),
          row("step", flops / best / 1e9, "GFLOP/s", peak / 1e9, "peak multiply-adds"),
          row("step peak memory", static_cast<double>(PeakResidentBytes()) / 1e9, "GB", 0, "")};
}

}  // namespace qlora::bench
