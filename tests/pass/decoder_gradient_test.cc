// The gradients of the whole decoder, by complex step: with x + ih in one parameter, the imaginary
// part of the loss divided by h is the derivative, without cancellation.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/backend_decorator.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"
#include "pass/random_decoder.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-50;
constexpr Precision kComplex{DType::kC128, DType::kC128};
constexpr Precision kDouble{DType::kF64, DType::kF64};

struct Family {
  std::string name;
  DecoderConfig config;
};

std::vector<Family> Families() {
  std::vector<Family> families;
  const auto add = [&](const std::string& name, auto&& change) {
    DecoderConfig c = TinyConfig();
    change(c);
    families.push_back({name, c});
  };
  add("Llama", [](DecoderConfig&) {});
  add("TiedMqa", [](DecoderConfig& c) {
    c.tie_word_embeddings = true;
    c.num_key_value_heads = 1;
  });
  add("Mistral", [](DecoderConfig& c) {
    for (LayerConfig& layer : c.layers) layer.window = 3;
  });
  add("Qwen2", [](DecoderConfig& c) { c.qkv_bias = true; });
  add("Qwen3", [](DecoderConfig& c) { c.qk_norm = QkNorm::kHeads; });
  add("AllBiases", [](DecoderConfig& c) { c.qkv_bias = c.o_bias = c.mlp_bias = true; });
  add("Gemma2", [](DecoderConfig& c) {
    c.post_norms = true;
    c.hidden_act = Activation::kGeluTanh;
    c.embed_scale = 4;
    c.attention_softcap = 2;
    c.final_softcap = 3;
    c.layers[0].window = 4;
  });
  add("Gemma3", [](DecoderConfig& c) {
    c.post_norms = true;
    c.qk_norm = QkNorm::kHeads;
    c.hidden_act = Activation::kGeluTanh;
    c.ropes.push_back(c.ropes[0]);
    c.ropes[1].rope_theta = 100;
    c.layers[0] = {4, 1};
  });
  add("Phi3", [](DecoderConfig& c) {
    c.fused_qkv = c.fused_gate_up = true;
    c.ropes[0].rotary_dim = 4;
  });
  add("SmolLM3", [](DecoderConfig& c) { c.layers[1].rope = -1; });
  add("Qwen3Moe", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.moe = {5, 2, false};
  });
  add("Mixtral", [](DecoderConfig& c) { c.moe = {4, 2, true}; });
  const auto gpt_oss = [](DecoderConfig& c) {
    c.qkv_bias = c.o_bias = c.mlp_bias = c.sinks = true;
    c.hidden_act = Activation::kClampedSwiglu;
    c.moe = {
        .num_experts = 4, .num_experts_per_tok = 2, .norm_topk_prob = true, .router_bias = true};
    c.layers[0].window = 3;
  };
  add("GptOss", gpt_oss);
  add("GptOssWithOneAOfGateAndUp", [=](DecoderConfig& c) {
    gpt_oss(c);
    c.moe.is_joined = true;
  });
  add("Granite", [](DecoderConfig& c) {
    c.qkv_bias = c.o_bias = c.mlp_bias = true;
    c.embed_scale = 3;
    c.residual_scale = 0.3f;
  });
  add("Ministral3", [](DecoderConfig& c) {
    c.ropes.push_back(c.ropes[0]);
    c.ropes[1].query_scale_beta = 0.5;
    c.ropes[1].original_max_position_embeddings = 3;
    for (LayerConfig& layer : c.layers) layer.query_rope = 1;
  });
  add("Olmo2", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kProjection;
    c.input_norms = false;
    c.post_norms = true;
  });
  add("Hunyuan", [](DecoderConfig& c) { c.qk_norm = QkNorm::kRotatedHeads; });
  add("Glm4", [](DecoderConfig& c) {
    c.post_norms = c.fused_gate_up = true;
    c.ropes[0].interleaved = true;
    c.ropes[0].rotary_dim = 4;
  });
  const auto delta_rule = [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.output_gate = true;
    c.ropes[0].rotary_dim = 2;
    c.layers[0] = {.rope = -1, .mixer = Mixer::kDeltaRule};
    c.conv_taps = 4;
    c.delta_rule = {.heads = 4, .key_heads = 2, .key_dim = 3, .value_dim = 5};
  };
  add("Qwen3_5", delta_rule);
  add("Qwen3_5OfGguf", [=](DecoderConfig& c) {
    delta_rule(c);
    c.delta_rule.tiled = true;
  });
  add("Qwen3_5Moe", [=](DecoderConfig& c) {
    delta_rule(c);
    c.moe = {.num_experts = 5,
             .num_experts_per_tok = 2,
             .norm_topk_prob = true,
             .shared_intermediate_size = 9};
  });
  add("Qwen3Next", [=](DecoderConfig& c) {
    delta_rule(c);
    c.fused_delta = true;
    c.moe = {.num_experts = 4,
             .num_experts_per_tok = 3,
             .norm_topk_prob = true,
             .shared_intermediate_size = 7};
  });
  add("Lfm2Moe", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {
        .rope = -1, .intermediate_size = 26, .mixer = Mixer::kShortConv, .is_dense = true};
    c.conv_taps = 3;
    c.moe = {.num_experts = 5,
             .num_experts_per_tok = 2,
             .norm_topk_prob = true,
             .score = RouterScore::kSigmoid,
             .expert_bias = true,
             .routed_scaling_factor = 1.5f};
  });
  add("Lfm2", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {.rope = -1, .mixer = Mixer::kShortConv};
    c.conv_taps = 3;
    c.conv_bias = true;
  });
  add("Gemma4", [](DecoderConfig& c) { c = TinyGemma4(false); });
  add("Gemma4E", [](DecoderConfig& c) { c = TinyGemma4(true); });
  for (const bool shared : {false, true}) {
    add(shared ? "Gemma4EExperts" : "Gemma4Experts", [=](DecoderConfig& c) {
      c = TinyGemma4(shared);
      c.side_moe = {5, 2, true};
      c.side_intermediate_size = 7;
    });
  }
  add("LayersOfTheirOwnSizes", [](DecoderConfig& c) {
    c.qk_norm = QkNorm::kHeads;
    c.layers[0] = {.num_key_value_heads = 1, .intermediate_size = 12};
    c.layers[1] = {.num_attention_heads = 2, .head_dim = 10};
  });
  return families;
}

class DecoderGradientTest : public testing::TestWithParam<Family> {};

AdapterConfig Dora() {
  AdapterConfig config;
  config.use_dora = true;
  return config;
}

// d(loss)/d(parameter i) for a sample of parameters that covers both matrices of every linear and
// every whole module.
void CompareWithComplexStep(const DecoderConfig& config, bool quantize, const DropoutState& dropout,
                            double dropout_probability, const AdapterConfig& kind = {}) {
  const auto backend = MakeReferenceBackend();
  const Batch batch = RandomBatch(config, {5, 1, 7}, 3);

  RandomWeights weights(config, DType::kF64, 11, quantize);
  LoraAdapter adapter = RandomAdapter(config, 2, DType::kF64, 5, dropout_probability, kind);
  adapter.InitializeModules(weights.get());
  const Decoder decoder(*backend, config, weights.get(), kDouble, 16);
  RefreshNorms(*backend, weights.get(), adapter);
  Runner runner(decoder, &adapter, batch, Recompute::kNone);
  const double loss = runner.LossAndGradients(dropout);

  RandomWeights complex_weights(config, DType::kC128, 11, quantize);
  LoraAdapter complex_adapter =
      RandomAdapter(config, 2, DType::kC128, 5, dropout_probability, kind);
  complex_adapter.InitializeModules(complex_weights.get());
  const Decoder complex_decoder(*backend, config, complex_weights.get(), kComplex, 16);
  RefreshNorms(*backend, complex_weights.get(),
               complex_adapter);  // of the real values: they count as constants
  Runner complex_runner(complex_decoder, &complex_adapter, batch, Recompute::kNone, batch.rows());
  EXPECT_NEAR(complex_runner.Loss(dropout), loss, 1e-12 * loss);

  const auto derivative = [&](Complex& parameter) {
    const Complex before = parameter;
    parameter += Complex(0, kStep);
    complex_runner.Loss(dropout);
    parameter = before;
    Complex sum = 0;
    for (std::int64_t i = 0; i < batch.supervised(); ++i) {
      sum -= complex_runner.activations().row_stats.Row<Complex>(0)[i];
    }
    return sum.imag() / kStep;
  };
  std::uint64_t draw = 0;
  double largest = 0;
  const auto compare = [&](const std::string& name, const MatrixView& gradient,
                           const MatrixView& parameter, int samples) {
    for (int sample = 0; sample < samples; ++sample) {
      const auto i = static_cast<std::int64_t>(
          RandomBelow(MakeKey(1, RandomPlace::kTest), draw++,
                      static_cast<std::uint64_t>(gradient.rows * gradient.cols)));
      const double expected = derivative(parameter.Row<Complex>(0)[i]);
      const double found = gradient.Row<double>(0)[i];
      EXPECT_NEAR(found, expected, 1e-11 * (1 + std::abs(expected))) << name << " element " << i;
      largest = std::max(largest, std::abs(expected));
    }
  };
  for (std::size_t l = 0; l < adapter.layers().size(); ++l) {
    ForEachPair(adapter.layers()[l], complex_adapter.layers()[l],
                [&](const LoraLinear& lora, const LoraLinear& complex_lora) {
                  compare(lora.path, lora.da, complex_lora.a, 4);
                  compare(lora.path, lora.db, complex_lora.b, 4);
                  if (kind.use_dora)
                    compare(lora.path, lora.d_magnitude, complex_lora.magnitude, 4);
                });
  }
  EXPECT_GT(largest, 1e-2);  // the check would pass on zeros otherwise
  for (std::size_t i = 0; i < adapter.modules().size(); ++i) {
    const TrainedModule& module = adapter.modules()[i];
    largest = 0;
    compare(module.name, module.gradient, complex_adapter.modules()[i].weight, 40);
    EXPECT_GT(largest, 1e-2) << module.name;
  }
}

TEST_P(DecoderGradientTest, AgreeWithComplexStep) {
  CompareWithComplexStep(GetParam().config, false, {}, 0);
}

// On the definitions and on the CPU, in both compute types.
void ExpectRecomputingChangesNoBit(const DecoderConfig& config, Backend& backend,
                                   DType activation) {
  const Batch batch = RandomBatch(config, {6, 3}, 4);
  RandomWeights weights(config, DType::kF32, 12);
  AdapterConfig whole;
  whole.modules_to_save = {"embed_tokens", "lm_head"};
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6, 0.2, whole);
  adapter.InitializeModules(weights.get());
  const Precision precision{activation, DType::kF32};
  const Decoder decoder(backend, config, weights.get(), precision, 16);
  backend.Reserve(
      LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
  std::vector<float> kept;
  for (Recompute recompute :
       {Recompute::kNone, Recompute::kAttention, Recompute::kMlp, Recompute::kLayer}) {
    Runner runner(decoder, &adapter, batch, recompute);
    runner.LossAndGradients({true, 9, 2});
    const MatrixView flat = adapter.gradients();
    const std::vector<float> gradients(flat.Row<float>(0), flat.Row<float>(0) + flat.cols);
    if (kept.empty()) kept = gradients;
    EXPECT_EQ(0, std::memcmp(kept.data(), gradients.data(), kept.size() * sizeof(float)));
  }
}

TEST_P(DecoderGradientTest, RecomputingChangesNoBit) {
  const DecoderConfig& config = GetParam().config;
  ExpectRecomputingChangesNoBit(config, *MakeReferenceBackend(), DType::kF32);
  Context context(2);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    ExpectRecomputingChangesNoBit(config, *MakeCpuBackend(context, compute), compute);
  }
}

TEST_P(DecoderGradientTest, AnyNumberOfThreadsGivesTheSameBits) {
  const DecoderConfig& config = GetParam().config;
  const Batch batch = RandomBatch(config, {9, 1, 6}, 4);
  const RandomWeights weights(config, DType::kF32, 12);
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6);
  std::vector<float> kept;
  for (const int threads : {1, 2, 5}) {
    Context context(threads);
    const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
    const Decoder decoder(*backend, config, weights.get(), {DType::kF32, DType::kF32}, 16);
    backend->Reserve(
        LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
    Runner runner(decoder, &adapter, batch, Recompute::kMlp);
    runner.LossAndGradients();
    const MatrixView flat = adapter.gradients();
    const std::vector<float> gradients(flat.Row<float>(0), flat.Row<float>(0) + flat.cols);
    if (kept.empty()) kept = gradients;
    EXPECT_EQ(0, std::memcmp(kept.data(), gradients.data(), kept.size() * sizeof(float)));
  }
}

// Lays matrices out for `tail` columns behind them.
class TailedBackend final : public BackendDecorator {
 public:
  TailedBackend(Backend& inner, std::int64_t tail) : BackendDecorator(inner), tail_(tail) {}
  std::int64_t TailColumns(std::int64_t) const override { return tail_; }

 private:
  const std::int64_t tail_;
};

TEST_P(DecoderGradientTest, TailsChangeNoBit) {
  const DecoderConfig& config = GetParam().config;
  const Batch batch = RandomBatch(config, {6, 3}, 4);
  RandomWeights weights(config, DType::kF32, 12);
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6, 0.2);
  Context context(2);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::unique_ptr<Backend> cpu = MakeCpuBackend(context, compute);
    cpu->Reserve(
        LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
    std::vector<float> kept;
    for (const std::int64_t tail : {0, 5, 64}) {
      TailedBackend backend(*cpu, tail);
      const Decoder decoder(backend, config, weights.get(), {compute, DType::kF32}, 16);
      Runner runner(decoder, &adapter, batch, Recompute::kMlp);
      runner.LossAndGradients({true, 9, 2});
      EXPECT_EQ(runner.activations().norm.stride, config.hidden_size + tail);
      const MatrixView flat = adapter.gradients();
      const std::vector<float> gradients(flat.Row<float>(0), flat.Row<float>(0) + flat.cols);
      if (kept.empty()) kept = gradients;
      EXPECT_EQ(0, std::memcmp(kept.data(), gradients.data(), kept.size() * sizeof(float)));
    }
  }
}

// `tolerance` bounds the errors of the loss and, in the 2-norm, of all gradients, relative to them.
template <typename T>
void ExpectPackedEqualsSeparate(const DecoderConfig& config, Backend& backend, DType dtype,
                                double tolerance) {
  const RandomWeights weights(config, dtype, 13);
  LoraAdapter adapter = RandomAdapter(config, 2, dtype, 8);
  const Decoder decoder(backend, config, weights.get(), {dtype, dtype}, 16);
  const std::vector<int> lengths = {4, 6, 2};
  const Batch packed = RandomBatch(config, lengths, 5);
  backend.Reserve(
      LimitsOf(config, {&adapter}, packed.rows(), packed.rows(), packed.rows(), packed.rows()));
  Runner packed_runner(decoder, &adapter, packed, Recompute::kLayer);
  const double packed_loss = packed_runner.LossAndGradients();
  const MatrixView flat = adapter.gradients();
  const std::vector<double> packed_gradients(flat.Row<T>(0), flat.Row<T>(0) + flat.cols);

  double loss = 0;
  std::vector<double> gradients(packed_gradients.size());
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto begin = static_cast<std::size_t>(packed.sequence_begin[s]);
    const auto end = static_cast<std::size_t>(packed.sequence_begin[s + 1]);
    Batch one;
    one.ids.assign(packed.ids.begin() + begin, packed.ids.begin() + end);
    one.targets.assign(packed.targets.begin() + begin, packed.targets.begin() + end);
    one.positions.assign(packed.positions.begin() + begin, packed.positions.begin() + end);
    one.sequence_begin = {0, static_cast<std::int64_t>(end - begin)};
    Runner runner(decoder, &adapter, one, Recompute::kLayer);
    loss += runner.LossAndGradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += flat.Row<T>(0)[i];
  }
  EXPECT_NEAR(packed_loss, loss, tolerance * loss);
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    error += std::pow(packed_gradients[i] - gradients[i], 2);
    norm += std::pow(gradients[i], 2);
  }
  EXPECT_GT(norm, 1e-4);
  EXPECT_LT(std::sqrt(error / norm), tolerance);
}

// The sums over the rows of the batch are what packing adds up in another order.
TEST_P(DecoderGradientTest, PackedEqualsSeparate) {
  const DecoderConfig& config = GetParam().config;
  // Sums over 12 rows, which cancel by half where tokens meet through products of gates.
  const bool has_gates = config.conv_taps > 0;
  // Scores that are not divided by the root of the size of heads magnify the errors of q and k, and
  // more layers have more of them.
  const double scores = config.attention_scale * std::sqrt(static_cast<double>(config.head_dim));
  const double layers = static_cast<double>(config.num_hidden_layers) / 2;
  const double rows = (has_gates ? 24 : 12) * std::max(1.0, scores) * layers;
  ExpectPackedEqualsSeparate<double>(config, *MakeReferenceBackend(), DType::kF64,
                                     rows * std::numeric_limits<double>::epsilon());
  Context context(2);
  ExpectPackedEqualsSeparate<float>(config, *MakeCpuBackend(context, DType::kF32), DType::kF32,
                                    rows * double{std::numeric_limits<float>::epsilon()});
}

INSTANTIATE_TEST_SUITE_P(All, DecoderGradientTest, testing::ValuesIn(Families()),
                         [](const auto& family) { return family.param.name; });

// Gate and up of an expert add to the gradient of one A.
TEST(DecoderGradient, OfSharedMatricesHasTheSameBitsOnAnyThreads) {
  DecoderConfig config;
  for (const Family& family : Families()) {
    if (family.name == "GptOssWithOneAOfGateAndUp") config = family.config;
  }
  // More columns than one task takes.
  config.hidden_size = 600;
  const Batch batch = RandomBatch(config, {40, 30}, 4);
  RandomWeights weights(config, DType::kF32, 12);
  LoraAdapter adapter = RandomAdapter(config, 3, DType::kF32, 6);
  EXPECT_TRUE(adapter.layers()[0].gate_up[1].shares_a);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    Context context(threads);
    const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
    backend->Reserve(
        LimitsOf(config, {&adapter}, batch.rows(), batch.rows(), batch.rows(), batch.rows()));
    const Decoder decoder(*backend, config, weights.get(), {DType::kF32, DType::kF32}, 64);
    Runner runner(decoder, &adapter, batch, Recompute::kNone);
    runner.LossAndGradients();
    const MatrixView flat = adapter.gradients();
    const std::vector<float> gradients(flat.Row<float>(0), flat.Row<float>(0) + flat.cols);
    if (first.empty()) first = gradients;
    EXPECT_EQ(0, std::memcmp(first.data(), gradients.data(), first.size() * sizeof(float)));
  }
}

TEST(DecoderGradient, OverFourBitWeights) { CompareWithComplexStep(TinyConfig(), true, {}, 0); }

TEST(DecoderGradient, WithDropout) {
  CompareWithComplexStep(TinyConfig(), false, {true, 77, 5}, 0.3);
}

TEST(DecoderGradient, OfDora) {
  CompareWithComplexStep(TinyConfig(), false, {}, 0, Dora());
  CompareWithComplexStep(TinyConfig(), true, {true, 77, 5}, 0.3, Dora());
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    if (family.config.moe.num_experts > 0) {
      EXPECT_THROW(RandomAdapter(family.config, 2, DType::kF64, 5, 0, Dora()), Error);
      continue;
    }
    CompareWithComplexStep(family.config, false, {}, 0, Dora());
  }
  DecoderConfig narrow = TinyConfig();  // the outputs of o and down are the widest
  narrow.fused_qkv = narrow.fused_gate_up = true;
  narrow.hidden_size = 96;
  CompareWithComplexStep(narrow, false, {}, 0, Dora());
}

TEST(DecoderGradient, OfRslora) {
  AdapterConfig rslora;
  rslora.use_rslora = true;
  CompareWithComplexStep(TinyConfig(), false, {}, 0, rslora);
  CompareWithComplexStep(TinyConfig(), true, {true, 77, 5}, 0.3, rslora);
}

TEST(DecoderGradient, OfEmbeddingsAndHead) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    AdapterConfig whole;
    whole.modules_to_save = {"embed_tokens", "lm_head"};
    CompareWithComplexStep(family.config, false, {}, 0, whole);
  }
  for (const char* module : {"embed_tokens", "lm_head"}) {  // one, where the base ties them or not
    for (const bool tied : {false, true}) {
      DecoderConfig config = TinyConfig();
      config.tie_word_embeddings = tied;
      AdapterConfig one;
      one.modules_to_save = {module};
      CompareWithComplexStep(config, false, {}, 0, one);
    }
  }
  AdapterConfig both = Dora();
  both.modules_to_save = {"lm_head", "embed_tokens"};
  DropoutState state{true, 77, 5};
  state.neftune_alpha = 5;
  CompareWithComplexStep(TinyConfig(), true, state, 0.3, both);
}

TEST(DecoderGradient, WithNoiseOnTheEmbeddings) {
  DropoutState state{true, 3, 1};
  state.neftune_alpha = 5;
  CompareWithComplexStep(TinyConfig(), false, state, 0);
}

// Uniform in +-alpha / sqrt(L D) for a sequence of L tokens.
TEST(DecoderGradient, NoiseOnTheEmbeddingsHasTheSizeOfThePaper) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF64, 13);
  const std::vector<int> lengths = {5, 40};
  const Batch batch = RandomBatch(config, lengths, 3);
  const Decoder decoder(*backend, config, weights.get(), kDouble, 64);
  const auto embeddings = [&](double alpha) {
    DropoutState state{true, 3, 1};
    state.neftune_alpha = alpha;
    Runner runner(decoder, nullptr, batch, Recompute::kNone);
    runner.Loss(state);
    const MatrixView x = runner.activations().layers[0].x_in;
    return std::vector<double>(x.Row<double>(0), x.Row<double>(0) + x.rows * x.cols);
  };
  const std::vector<double> plain = embeddings(0);
  const std::vector<double> noisy = embeddings(5);
  std::size_t i = 0;
  for (const int length : lengths) {
    const auto values = static_cast<std::size_t>(length * config.hidden_size);
    double largest = 0;
    for (const std::size_t end = i + values; i < end; ++i) {
      largest = std::max(largest, std::abs(noisy[i] - plain[i]));
    }
    const double limit = 5 / std::sqrt(static_cast<double>(values));
    EXPECT_LE(largest, limit * (1 + 1e-6));
    EXPECT_GE(largest, 0.9 * limit);  // 80 values and more: all below it in one draw of 4000
  }
}

TEST(DecoderGradient, DoraStartsAsTheBase) {
  const DecoderConfig config = TinyConfig();
  const auto backend = MakeReferenceBackend();
  const RandomWeights weights(config, DType::kF64, 13, true);
  const Batch batch = RandomBatch(config, {5, 7}, 3);
  const auto loss_with = [&](LoraAdapter* adapter) {
    const Decoder decoder(*backend, config, weights.get(), kDouble, 16);
    if (adapter != nullptr) InitializeMagnitudes(*backend, weights.get(), *adapter);
    Runner runner(decoder, adapter, batch, Recompute::kNone);
    return runner.Loss();
  };
  AdapterConfig adapter_config;
  adapter_config.use_dora = true;
  adapter_config.target_modules = std::string("all-linear");
  LoraAdapter adapter = LoraAdapter::Create(adapter_config, config, HostMemory(), 1, DType::kF64);
  EXPECT_NEAR(loss_with(&adapter), loss_with(nullptr), 1e-12);
}

}  // namespace
}  // namespace qlora
